"""The joint flow: its formula, its reductions, its limits, its derivatives."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st

import scan_snap_ode as sso
from scan_snap_ode.flows import objective as objectives
from scan_snap_ode.problem import initial
from scan_snap_ode.theory import attention

LAYOUTS = [objectives.PaddedObjective, objectives.BlockedObjective]


def random_state(classes, seed, full):
    """Y and Z in reduced coordinates, and the same as (M, M)."""
    layout, rng = classes.layout, np.random.default_rng(seed)
    M = classes.vocab_size
    Y, Z = rng.normal(size=(M, M)), rng.normal(size=(M, M))
    if not full:
        other = np.setdiff1d(np.arange(M), classes.next_tokens)
        Y[:, other] = Y[:, other[:1]]
    return initial.given(layout, (Y, Z), jnp.float64), Y, Z


def kept(classes, Y, width):
    """The rows and columns of a full Y that a reduced one of that width has."""
    tokens = classes.layout.decoder_of_width(width).tokens
    other = np.setdiff1d(np.arange(classes.vocab_size), classes.next_tokens)
    columns = [other[0] if token < 0 else token for token in tokens]
    return Y[classes.support_tokens][:, columns]


@pytest.mark.quick
@settings(max_examples=15, deadline=None)
@given(reference.class_sets(), st.integers(0, 2**32 - 1), st.booleans(), st.sampled_from(LAYOUTS))
def test_gradient_is_that_of_the_full_system(classes, seed, full, layout):
    (Y, Z), full_Y, full_Z = random_state(classes, seed, full)
    J, (dY, dZ) = layout(classes).value_and_gradient(Y, Z)
    expected = reference.gradient(
        np.asarray(classes.probs),
        classes.query,
        classes.next_token,
        np.asarray(classes.weights),
        full_Y,
        full_Z,
    )
    np.testing.assert_allclose(J, expected[0], rtol=1e-12)
    np.testing.assert_allclose(layout(classes).value(Y, Z), expected[0], rtol=1e-12)
    np.testing.assert_allclose(dY, kept(classes, expected[1], Y.shape[1]), atol=1e-12)
    rows = expected[2][classes.query_tokens]
    np.testing.assert_allclose(dZ, rows[:, classes.support_tokens], atol=1e-12)
    # What the reduction drops does not move.
    assert not np.delete(expected[2], classes.query_tokens, axis=0).any()
    assert not np.delete(rows, classes.support_tokens, axis=1).any()
    assert not np.delete(expected[1], classes.support_tokens, axis=0).any()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_formulas_are_the_derivative_of_the_objective(layout):
    classes = sso.syn_medium(2, num_common=3, num_distinct=3)
    (Y, Z), _, _ = random_state(classes, 1, full=False)
    J = layout(classes)
    dY, dZ = jax.grad(J.value, argnums=(0, 1))(Y, Z)
    _, (formula_Y, formula_Z) = J.value_and_gradient(Y, Z)
    np.testing.assert_allclose(
        formula_Y * classes.layout.decoder.multiplicity[None], dY, atol=1e-14
    )
    np.testing.assert_allclose(formula_Z, dZ, atol=1e-14)


@pytest.mark.parametrize("chunk", [1, 700, 10**6])
def test_chunks_of_classes_change_nothing(monkeypatch, chunk):
    classes = sso.syn_medium(5)
    (Y, Z), _, _ = random_state(classes, 2, full=False)
    expected = objectives.PaddedObjective(classes).value_and_gradient(Y, Z)
    monkeypatch.setattr(objectives, "CHUNK", chunk)
    found = objectives.PaddedObjective(classes).value_and_gradient(Y, Z)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        np.testing.assert_allclose(a, b, atol=1e-15)


@settings(max_examples=6, deadline=None)
@given(reference.class_sets(), st.integers(0, 2**32 - 1), st.booleans(), st.booleans())
def test_flow_is_that_of_the_full_system(classes, seed, full, from_zero):
    _, Y, Z = random_state(classes, seed, full)
    Y, Z = (0 * Y, 0 * Z) if from_zero else (Y, Z)
    rates = sso.LearningRates(0.7, 0.3)
    run = sso.integrate(
        sso.JointFlow(classes), rates, [8.0], init="zeros" if from_zero else (Y, Z), rtol=1e-10
    )
    end_Y, end_Z = reference.flow(classes, rates, 8.0, Y, Z)
    np.testing.assert_allclose(
        run.decoder[0], kept(classes, end_Y, run.decoder.shape[-1]), atol=1e-7
    )
    expected_Z = end_Z[classes.query_tokens][:, classes.support_tokens]
    np.testing.assert_allclose(run.attention_logits[0], expected_Z, atol=1e-7)


def test_cost_does_not_depend_on_the_vocabulary():
    small = sso.single_common_token(10, 1000, 0.1, 10)
    large = sso.single_common_token(10, 10_000_000, 0.1, 10)
    runs = [
        sso.integrate(sso.JointFlow(c), sso.LearningRates(1.0, 1.0), [50.0]) for c in (small, large)
    ]
    assert runs[0].decoder.shape == runs[1].decoder.shape == (1, 101, 11)


def test_no_column_is_left_over_when_every_token_is_a_next_token():
    probs = np.array([[0.5, 0.5], [0.9, 0.1]])
    classes = sso.SequenceClasses(probs, query=[0, 0], next_token=[0, 1])
    run = sso.integrate(sso.JointFlow(classes), sso.LearningRates(1.0, 1.0), [0.0, 5.0])
    assert list(run.decoder_tokens) == [0, 1]
    np.testing.assert_allclose(run.loss[0], np.log(2), rtol=1e-14)


def test_only_the_ratio_of_the_rates_matters():
    flow, ts = sso.JointFlow(sso.syn_small()), np.array([1.0, 30.0, 900.0])
    slow = sso.integrate(flow, sso.LearningRates(0.1, 0.02), ts * 10, rtol=1e-10)
    fast = sso.integrate(flow, sso.LearningRates(1.0, 0.2), ts, rtol=1e-10)
    np.testing.assert_allclose(slow.decoder, fast.decoder, atol=1e-7)
    np.testing.assert_allclose(slow.attention_logits, fast.attention_logits, atol=1e-7)


def test_attention_starts_with_the_square_of_time():
    """z_m = ½ η_Y η_Z t² Σ wᵢ fᵢ ∘ (I − fᵢfᵢᵀ) F vᵢ + O(t³), v_ij = w_j (s_ij − 1/M)."""
    classes, rates = sso.syn_medium(2, num_common=3, num_distinct=2), sso.LearningRates(2.0, 3.0)
    P = np.asarray(classes.probs)
    F = P / np.linalg.norm(P, axis=1, keepdims=True)
    w = np.asarray(classes.weights)
    same = classes.next_token[:, None] == classes.next_token[None]
    v = w[None] * (same - 1 / classes.vocab_size)
    law = np.zeros((len(classes.query_tokens), classes.vocab_size))
    for i, m in enumerate(np.searchsorted(classes.query_tokens, classes.query)):
        pulled = F.T @ v[i]
        law[m] += w[i] * F[i] * (pulled - F[i] * (F[i] @ pulled))
    ts = np.array([1e-3, 2e-3, 4e-3])
    run = sso.integrate(sso.JointFlow(classes), rates, ts, rtol=1e-12, atol=1e-18)
    exact = 0.5 * 2.0 * 3.0 * law[:, classes.support_tokens]
    error = [
        np.linalg.norm(z / t**2 - exact) / np.linalg.norm(exact)
        for z, t in zip(np.asarray(run.attention_logits), ts, strict=True)
    ]
    assert error[0] < 3e-3
    slope = np.polyfit(np.log(ts), np.log(error), 1)[0]
    assert abs(slope - 1) < 0.1


def test_energy_of_the_decoder():
    """d|Y|²/dt = 2 η_Y Σ wᵢ fᵢ·gᵢ, with Σ wᵢ fᵢ·gᵢ = Σ_ld Y_ld ∂J/∂Y_ld."""
    flow, rates = sso.JointFlow(sso.syn_small()), sso.LearningRates(1.0, 1.0)
    multiplicity = flow.classes.layout.decoder.multiplicity
    h = 1e-3
    run = sso.integrate(flow, rates, [5 - h, 5.0, 5 + h], rtol=1e-11, atol=1e-13)
    norm = np.sum(np.asarray(run.decoder) ** 2 * multiplicity, axis=(1, 2))
    f = np.asarray(run.attention[1])
    f = f / np.linalg.norm(f, axis=1, keepdims=True)
    Y = np.asarray(run.decoder[1])
    scores = f @ Y
    alpha = np.exp(scores) * multiplicity
    alpha /= alpha.sum(1, keepdims=True)
    residual = np.eye(3)[[0, 1]] - alpha
    power = 2 * np.sum(0.5 * np.sum(scores * residual, axis=1))
    np.testing.assert_allclose((norm[2] - norm[0]) / (2 * h), power, rtol=1e-5)


def test_derivatives_through_the_solve():
    """With respect to rates, probabilities, weights and times, against central differences."""
    base = sso.syn_small()

    def observable(log_rates, logits, weights, t):
        probs = jax.nn.softmax(logits, axis=1)
        classes = sso.SequenceClasses.from_sparse(
            base.ids, probs, base.query, base.next_token, weights, vocab_size=base.vocab_size
        )
        rates = sso.LearningRates(jnp.exp(log_rates[0]), jnp.exp(log_rates[1]))
        run = sso.integrate(sso.JointFlow(classes), rates, t[None], rtol=1e-9, atol=1e-11)
        return run.entropy[0, 0]

    point = (
        jnp.array([0.3, -0.2]),
        jnp.log(base.support_probs),
        jnp.array([0.4, 0.6]),
        jnp.array(20.0),
    )
    gradients = jax.grad(observable, argnums=(0, 1, 2, 3))(*point)
    rng = np.random.default_rng(0)
    for k, gradient in enumerate(gradients):
        direction = jnp.asarray(rng.normal(size=point[k].shape))
        if k == 2:
            direction = jnp.array([1.0, -1.0])
        h = 1e-4

        def moved(step, k=k, direction=direction):
            return observable(*(x + step * direction if j == k else x for j, x in enumerate(point)))

        difference = (moved(h) - moved(-h)) / (2 * h)
        np.testing.assert_allclose(jnp.sum(gradient * direction), difference, rtol=2e-5)


def test_a_flow_goes_on_where_it_ended():
    flow, rates = sso.JointFlow(sso.syn_small()), sso.LearningRates(1.0, 1.0)
    whole = sso.integrate(flow, rates, [0.0, 10.0, 100.0, 300.0], rtol=1e-10)
    begun = sso.integrate(flow, rates, [0.0, 10.0], rtol=1e-10)
    on = sso.integrate(flow, rates, [100.0, 300.0], rtol=1e-10, init=begun)
    np.testing.assert_array_equal(on.ts, whole.ts)
    np.testing.assert_allclose(on.decoder, whole.decoder, atol=1e-7)
    assert on.stats["accepted_steps"] > begun.stats["accepted_steps"]


def test_new_rates_and_tolerances_compile_nothing(monkeypatch):
    traces, derivative = 0, sso.JointFlow.derivative

    def counted(self, t, state, rates):
        nonlocal traces
        traces += 1
        return derivative(self, t, state, rates)

    monkeypatch.setattr(sso.JointFlow, "derivative", counted)
    ts = np.linspace(1, 2, 13)  # a length that no other test has
    sso.integrate(sso.JointFlow(sso.syn_small()), sso.LearningRates(1.0, 1.0), ts)
    first = traces
    assert first > 0
    flow = sso.JointFlow(sso.syn_small())
    sso.integrate(flow, sso.LearningRates(0.5, 2.0), ts + 1, rtol=1e-5, atol=1e-6)
    assert traces == first


def test_stiff_solvers_pass_through():
    import diffrax

    flow, rates = sso.JointFlow(sso.syn_small()), sso.LearningRates(1.0, 1.0)
    explicit = sso.integrate(flow, rates, [100.0])
    implicit = sso.integrate(flow, rates, [100.0], solver=diffrax.Kvaerno5())
    assert implicit.about["solver"] == "Kvaerno5"
    np.testing.assert_allclose(implicit.attention_logits, explicit.attention_logits, atol=1e-5)


def test_a_failed_solve_says_where_and_what_to_try():
    flow, rates = sso.JointFlow(sso.syn_small()), sso.LearningRates(1.0, 1.0)
    with pytest.raises(sso.SolveError, match=r"max_steps = 5 .* at t = .* of 1000.*Kvaerno5"):
        sso.integrate(flow, rates, [0.001, 1000.0], max_steps=5)
    run = sso.integrate(flow, rates, [0.001, 1000.0], max_steps=5, throw=False)
    assert run.status == sso.Status.MAX_STEPS
    assert np.isfinite(run.decoder[0]).all()
    assert np.isnan(run.decoder[1]).all()
    both = sso.LearningRates(np.array([1.0, 1e-6]), np.array([1.0, 1e-6]))
    mixed = sso.integrate(flow, both, [0.001, 1000.0], max_steps=12, throw=False)
    assert list(mixed.status) == [sso.Status.MAX_STEPS, sso.Status.SUCCESS]


def test_a_flow_goes_on_late_in_single_precision(single_precision):
    """The first step must not be lost in the rounding of a large t."""
    flow, rates = sso.JointFlow(sso.syn_small()), sso.LearningRates(10.0, 10.0)
    begun = sso.integrate(flow, rates, [1e6])
    on = sso.integrate(flow, rates, [2e6], init=begun, max_steps=100)
    whole = sso.integrate(flow, rates, [1e6, 2e6])
    np.testing.assert_allclose(on.attention_logits, whole.attention_logits, atol=1e-3)


def test_losses_are_finite_however_far_apart_the_logits_are():
    """A row's tokens may all lie far below the largest logit of its query."""
    probs = np.array([[0.5, 0.5, 0, 0], [0, 0, 0.5, 0.5]])
    classes = sso.SequenceClasses(probs, query=[0, 0], next_token=[1, 2])
    Z = np.zeros((4, 4))
    Z[0, :2] = 2000, 1000
    Y = np.random.default_rng(0).normal(size=(4, 4))
    run = sso.integrate(sso.JointFlow(classes), sso.LearningRates(1.0, 1.0), [0.0], init=(Y, Z))
    # f of the first class is its first token, since exp(-1000) is 0; of the second, both alike.
    scores = np.array([Y[0], (Y[2] + Y[3]) / np.sqrt(2)])
    log_alpha = scores - np.log(np.exp(scores).sum(1, keepdims=True))
    np.testing.assert_allclose(run.loss, [-(log_alpha[0, 1] + log_alpha[1, 2]) / 2], rtol=1e-12)


def test_entropy_of_a_run_that_diverged_is_unknown():
    c = np.array([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [np.nan, np.nan, 0.0]])
    np.testing.assert_allclose(attention.entropy(jnp.asarray(c)), [np.log(2), 0, np.nan])


def test_a_traced_tolerance_is_a_tolerance():
    flow, rates = sso.JointFlow(sso.syn_small()), sso.LearningRates(1.0, 1.0)

    def end(rtol):
        return sso.integrate(flow, rates, [20.0], rtol=rtol).attention_logits

    np.testing.assert_allclose(jax.jit(end)(1e-9), end(1e-9), rtol=1e-12)
    assert np.abs(end(1e-3) - end(1e-9)).max() > 1e-9
