"""What the theory assumes, against NumPy and numbers worked out by hand."""

# pyright: reportArgumentType=false

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from reference import class_sets

import scan_snap_ode as sso
from scan_snap_ode import files
from scan_snap_ode.problem import assumptions
from scan_snap_ode.problem.overlap import class_gram, rank_deficiency

rates = sso.LearningRates(1.0, 0.1)
NAMES = [
    "long sequences",
    "slow attention",
    "many tokens a class",
    "large vocabulary",
    "weak correlation",
    "regular overlap in proof",
    "regular overlap in print",
    "independent classes",
    "decoder not too slow",
    "decoder not too fast",
    "late times",
    "uniform classes",
    "distinct next tokens",
]


def independent(num_classes, shared_next=False):
    """Classes of one token each."""
    ids = np.arange(num_classes)[:, None]
    query = np.full(num_classes, num_classes)
    next_token = query + 1 if shared_next else ids[:, 0]
    return sso.SequenceClasses.from_sparse(
        ids, np.ones(ids.shape), query, next_token, vocab_size=num_classes + 2
    )


def unit(rows):
    F = np.array(rows, float)
    return F / np.linalg.norm(F, axis=1, keepdims=True)


# -------------------------------------------------------------------------------- the numbers


def test_syn_small_violates_weak_correlation():
    report = sso.syn_small().check_assumptions(rates, context_length=128)
    smallest = 0.1 / (10 + 5.5)
    expected = {  # value, threshold, met
        "long sequences": (np.sqrt(np.log(2 * 20 / 0.05) / (2 * 127)), smallest / 10, False),
        "slow attention": (10, 10, True),
        "many tokens a class": (34, 40, False),
        "large vocabulary": (34, 1000, False),
        "weak correlation": (200 / 277, 1 / 2, False),
        "regular overlap in proof": (200 / 277, np.sqrt(6 / 34), True),
        "regular overlap in print": (200 / 277, 6 / np.sqrt(34), False),
        "independent classes": (77 / 277, 200 * 2.0**-52, True),
        "decoder not too slow": (1, 10 * 34**-0.99, True),
        "decoder not too fast": (1, 1, False),
        "late times": (4, 40, None),
        "uniform classes": (0, 0.1, True),
        "distinct next tokens": (1, 1, True),
    }
    assert [line.name for line in report] == list(expected) == NAMES
    for line in report:
        value, threshold, met = expected[line.name]
        assert line.value == pytest.approx(value, rel=1e-12, abs=1e-12), line.name
        assert line.threshold == pytest.approx(threshold, rel=1e-12), line.name
        assert line.met is met, line.name
    assert report["independent classes"].why.endswith(f"is {477 / 77:.3g}.")
    assert not report.all_met
    violated = [name for name, (_, _, met) in expected.items() if met is False]
    assert [line.name for line in report.violated] == violated


def test_one_common_token():
    """The paper's Figure 3: K = 10, M = 1000, here of overlap e everywhere: λ = 9e, and -e."""
    mass = np.linspace(0.5, 1.5, 10)
    mass *= 0.9 / mass.sum()
    e = 0.1**2 / (0.1**2 + (mass**2).sum())
    report = sso.single_common_token(10, 1000, 0.1, 10).check_assumptions()
    assert report["weak correlation"].value == pytest.approx(9 * e, rel=1e-12)
    assert report["weak correlation"].threshold == pytest.approx(0.1)
    for name in ("regular overlap in proof", "regular overlap in print"):
        assert report[name].value == pytest.approx(e, rel=1e-12)
    assert report["independent classes"].value == pytest.approx(1 - e, rel=1e-12)
    assert f"{(1 + 9 * e) / (1 - e):.3g}" in report["independent classes"].why
    assert report["long sequences"].threshold == pytest.approx(mass.min() / 10)
    # The setting by which "≫" was chosen: it just satisfies both.
    assert report["many tokens a class"].met
    assert report["large vocabulary"].met
    assert report["late times"].threshold == 1000


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(class_sets())
def test_eigenvalues_are_those_of_the_overlap(classes):
    report = classes.check_assumptions()
    P = np.asarray(classes.probs)
    F = unit(P)
    N, M = P.shape
    values = np.linalg.eigvalsh(F @ F.T)
    assert np.allclose(class_gram(classes), F @ F.T, rtol=0, atol=1e-14)
    found = {line.name: line.value for line in report}
    close = {"rel": 1e-12, "abs": 1e-12}
    assert found["weak correlation"] == pytest.approx(np.abs(values - 1).max(), **close)
    for name in ("regular overlap in proof", "regular overlap in print"):
        assert found[name] == pytest.approx(np.abs(values - 1).min(), **close)
    assert found["independent classes"] == pytest.approx(max(values[0], 0), **close)
    # A singular value of 1e-12, or below that of 1e-7, is beyond doubt.
    singular = np.linalg.svd(F, compute_uv=False).min() if len(classes.support_tokens) >= N else 0
    if singular < 1e-12 or singular > 1e-6:
        assert report["independent classes"].met is bool(singular > 1e-6)
    assert found["uniform classes"] == pytest.approx(
        np.abs(N * np.asarray(classes.weights) - 1).max(), **close
    )
    assert report["distinct next tokens"].met is (len(set(classes.next_token.tolist())) == N)
    assert report["weak correlation"].threshold == 1 / N
    assert report["many tokens a class"].met is bool(M >= 10 * N**2)


def test_rates_of_arrays_count_by_their_worst():
    grid = sso.LearningRates([0.001, 0.5, 2.0], 0.05)
    report = sso.syn_small().check_assumptions(grid)
    assert report["slow attention"].value == pytest.approx(0.02)
    assert report["decoder not too slow"].value == 0.001
    assert report["decoder not too fast"].value == 2
    assert [report[name].met for name in NAMES if name.startswith("decoder")] == [False, False]


def test_ratios_are_judged_alike_in_single_precision(single_precision):
    """Ten is ten where the rates were rounded, and where it overflows there is no warning."""
    for decoder, attention in ((1.0, 0.1), (0.3, 0.03), (0.7, 0.07)):
        pair = sso.LearningRates(decoder, attention)
        report = sso.syn_small().check_assumptions(pair, 128)
        assert report["slow attention"].met
        assert report["independent classes"].threshold == pytest.approx(200 * 2.0**-23)
        assert report["weak correlation"].value == pytest.approx(200 / 277, rel=1e-6)
    huge = sso.LearningRates(1e38, 1e-37)
    assert sso.syn_small().check_assumptions(huge)["slow attention"].met


def test_long_enough_sequences():
    classes = sso.syn_small()
    needed = np.log(2 * 20 / 0.05) / 2 / (0.1 / 15.5 / 10) ** 2
    for T, met in ((int(needed * 0.999), False), (int(needed * 1.001) + 2, True)):
        assert classes.check_assumptions(context_length=T)["long sequences"].met is met


def test_weights_and_shared_next_tokens():
    P = np.eye(4)[:3]
    classes = sso.SequenceClasses(P, [3, 3, 3], [0, 0, 1], weights=[0.3, 0.33, 0.37])
    report = classes.check_assumptions()
    assert report["uniform classes"].value == pytest.approx(0.11)
    assert report["uniform classes"].met is False
    assert report["distinct next tokens"].value == 2
    assert report["distinct next tokens"].met is False


# ---------------------------------------------------------------------- who is linearly dependent


@pytest.mark.parametrize(
    ("rows", "phrase"),
    [
        (np.eye(3), None),
        ([[1, 2], [1, 3]], None),
        ([[1, 2, 0], [0, 1, 1], [1, 2, 0]], "classes 0 and 2 coincide"),
        ([[1, 2], [2, 1], [1, 2], [1, 2]], "classes 0, 2 and 3 coincide"),
        ([[1, 2], [2, 1], [1, 2], [2, 1]], "classes 0 and 2 coincide, so do 1 and 3"),
        (
            np.repeat(np.eye(5), 2, 0),
            "classes 0 and 1 coincide, so do 2 and 3, 4 and 5 and 2 more groups",
        ),
        (
            np.ones((11, 2)),
            "classes 0, 1, 2, 3, 4, 5, 6, 7 and 3 more coincide",
        ),
        (
            [[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 2, 3, 0], [0, 0, 0, 1]],
            "classes 1, 2 and 3 are linearly dependent",
        ),
        (  # two dependencies: the first alone is named
            [[1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 1], [1, 2, 3]],
            "classes 0, 1 and 2 are linearly dependent",
        ),
    ],
)
def test_dependent_classes_are_named(rows, phrase):
    F = unit(rows)
    for dtype in (np.float64, np.float32):
        assert rank_deficiency((F @ F.T).astype(dtype)) == phrase


def test_any_dependency_is_found():
    """Class 40 is made of 3, 17 and 30; in single precision, where it is known to 1e-7, too."""
    P = np.random.default_rng(0).dirichlet(np.ones(60), 50)
    P[40] = 0.2 * P[3] + 0.5 * P[17] + 0.3 * P[30]
    phrase = "classes 3, 17, 30 and 40 are linearly dependent"
    for dtype in (np.float64, np.float32):
        classes = sso.SequenceClasses(P.astype(dtype), [0] * 50, range(50))
        line = classes.check_assumptions()["independent classes"]
        assert line.met is False
        assert line.value == pytest.approx(0, abs=1e-12)
        assert line.why.startswith(f"{phrase}; JointFlow and AdiabaticFlow do without")


def test_nearly_dependent_is_a_matter_of_precision():
    """cos = 1 - 1e-9: single precision cannot tell, double can."""
    G = np.array([[1, 1 - 1e-9], [1 - 1e-9, 1]])
    assert rank_deficiency(G) is None
    assert rank_deficiency(G.astype(np.float32)) == "classes 0 and 1 coincide"


def test_a_gram_matrix_of_integers():
    assert rank_deficiency(np.eye(2, dtype=int)) is None
    assert rank_deficiency(np.ones((2, 2), int)) == "classes 0 and 1 coincide"


def test_more_classes_than_tokens():
    P = [[1, 0, 0], [0.5, 0.5, 0], [0, 1, 0]]
    line = sso.SequenceClasses(P, [2] * 3, [2] * 3).check_assumptions()["independent classes"]
    assert (line.value, line.met) == (0, False)
    assert line.why.startswith("3 classes hold only 2 tokens; JointFlow")


def test_the_gram_matrix_is_taken_in_blocks():
    """5,000 common tokens, more than one block of them."""
    rng = np.random.default_rng(1)
    P = rng.dirichlet(np.ones(5000), 3)
    classes = sso.SequenceClasses(P, [0] * 3, [1, 2, 3])
    F = unit(P)
    assert np.allclose(class_gram(classes), F @ F.T, rtol=0, atol=1e-14)


# ------------------------------------------------------------------------------------ its limits


def test_too_many_classes_for_eigenvalues(monkeypatch):
    monkeypatch.setattr(assumptions, "class_gram", lambda _: pytest.fail("computed"))
    report = independent(5000).check_assumptions(rates, 65)
    for name in NAMES[4:8]:
        assert report[name].value is None
        assert report[name].met is None
        assert report[name].why == "not computed: 5,000 classes"
    assert "not computed: 5,000 classes" in repr(report)
    assert report["many tokens a class"].value == 5002
    assert report["many tokens a class"].met is False


def test_the_limit_is_2000_classes(monkeypatch):
    monkeypatch.setattr(assumptions, "class_gram", lambda c: np.eye(2))
    assert independent(2000).check_assumptions()["weak correlation"].value == 0
    assert independent(2001).check_assumptions()["weak correlation"].value is None


def test_more_classes_than_tokens_is_known_without_eigenvalues():
    ids = np.zeros((2001, 1), int)
    one = sso.SequenceClasses.from_sparse(
        ids, np.ones(ids.shape), ids[:, 0], ids[:, 0], vocab_size=2
    )
    line = one.check_assumptions()["independent classes"]
    assert line.met is False
    assert line.why.startswith("2,001 classes hold only 1 token;")


# ------------------------------------------------------------------------------ the report itself


def test_the_printed_table():
    text = repr(sso.syn_small().check_assumptions(rates, 128))
    lines = text.splitlines()
    assert lines[0] == "Assumptions of the theory (≫: at least 10 times)"
    starts = [lines[1].index(title) for title in ("value", "asked", "verdict")]
    for name, line in zip(NAMES, lines[2:15], strict=True):
        assert line.startswith(f"  {name} ")
        for start in starts:
            assert line[start - 2 : start] == "  "
            assert line[start] != " "
    assert lines[6].split()[2:] == ["|λ1(E)|", "=", "0.722", "<", "1/K", "=", "0.5", "NOT", "met"]
    assert lines[12].endswith("t ≥ 10 K² = 40         depends on t")
    assert max(map(len, lines)) <= 100
    assert "regular overlap in print (needed by Theorem 1, Theorem 2): the gain" in text
    assert "decoder not too slow (needed" not in text  # it is met


def test_what_is_not_given_has_no_verdict():
    report = sso.syn_small().check_assumptions()
    unknown = {line.name: line.why for line in report if line.met is None}
    assert unknown == {
        "long sequences": "context_length not given",
        "slow attention": "rates not given",
        "decoder not too slow": "rates not given",
        "decoder not too fast": "rates not given",
        "late times": "depends on t",
    }
    for line in repr(report).splitlines()[2:4]:
        assert line.endswith("not given")


def test_all_met():
    """Nearly orthogonal classes, though no overlap at all is none of the paper's cases."""
    classes = sso.single_common_token(2, 4000, 0.2, 10)
    report = classes.check_assumptions(sso.LearningRates(0.5, 0.01), 10**7)
    assert report.all_met
    assert report.violated == ()
    assert len(repr(report).splitlines()) == len(report) + 2
    report = independent(2).check_assumptions()
    assert report["weak correlation"].met
    assert report["regular overlap in proof"].met is False


def test_its_data():
    report = sso.syn_small().check_assumptions(rates, 128)
    assert isinstance(report, sso.Assumptions)
    assert len(report) == len(list(report)) == len(report.to_dicts()) == 13
    data = json.loads(json.dumps(files.plain(report.to_dicts()), allow_nan=False))
    assert data == report.to_dicts()
    assert set(data[4]) == {
        "name", "statement", "symbol", "value", "asked", "threshold", "met", "why", "needed_by"
    }  # fmt: skip
    assert data[4]["needed_by"] == ["Theorem 1", "Theorem 2"]
    needed = [line.name for line in report if "slow attention" in line.needed_by]
    assert needed == ["long sequences", "slow attention", "independent classes"]
    assert [line.name for line in report if "modified" in line.needed_by] == [
        "long sequences", "independent classes"
    ]  # fmt: skip
    with pytest.raises(KeyError, match=r"name must be among .*'late times'.*, was 'later'"):
        report["later"]
    with pytest.raises(AttributeError):
        report.lines = ()  # pyright: ignore[reportAttributeAccessIssue]


# --------------------------------------------------------------------------------- wrong arguments

small = sso.syn_small()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: assumptions.check_assumptions(None), "classes must be SequenceClasses, was None."),
        (lambda: small.check_assumptions(0.1),
         "rates must be LearningRates or None, was 0.1."),
        (lambda: small.check_assumptions((1.0, 0.1)),
         "rates must be LearningRates or None, was (1.0, 0.1)."),
        (lambda: small.check_assumptions(rates, 1),
         "context_length must be an integer of at least 2, was 1."),
        (lambda: small.check_assumptions(rates, 128.0),
         "context_length must be an integer of at least 2, was 128.0."),
        (lambda: small.check_assumptions(rates, True),
         "context_length must be an integer of at least 2, was True."),
        (lambda: small.check_assumptions(context_length="long"),
         "context_length must be an integer of at least 2, was 'long'."),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call()
    assert str(caught.value) == message


def test_traced_values_are_refused():
    @jax.jit
    def of_weights(w):
        return sso.SequenceClasses(np.eye(3)[:2], [2, 2], [0, 1], w).check_assumptions()

    @jax.jit
    def of_rates(eta):
        return small.check_assumptions(sso.LearningRates(eta, 0.1))

    concrete = "must be concrete to check assumptions, was traced by a transformation."
    with pytest.raises(ValueError, match=f"classes {concrete}"):
        of_weights(jnp.array([0.5, 0.5]))
    with pytest.raises(ValueError, match=f"rates {concrete}"):
        of_rates(jnp.array(1.0))


def test_known_values_may_be_checked_inside_a_transformation():
    @jax.jit
    def double(x):
        assert small.check_assumptions(rates, 128)["long sequences"].value is not None
        return 2 * x

    assert double(jnp.array(1.0)) == 2
