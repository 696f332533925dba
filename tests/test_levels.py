"""The levels of the theory: their formulas, their limits, what each of them conserves."""

import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import reference
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import scan_snap_ode as sso
from scan_snap_ode.flows import objective as objectives
from scan_snap_ode.theory import attention, growth

DATA = Path(__file__).parent / "data"
FLOWS = {
    "joint": sso.JointFlow,
    "modified": sso.ModifiedJointFlow,
    "adiabatic": sso.AdiabaticFlow,
    "slow": sso.SlowAttentionFlow,
}
SHARP: Any = {"rtol": 1e-11, "atol": 1e-16}
ONE = sso.LearningRates(1.0, 1.0)


def relative(a, b):
    return float(np.linalg.norm(a - b) / np.linalg.norm(b))


def random_logits(classes, seed):
    shape = len(classes.query_tokens), len(classes.support_tokens)
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape))


def well_conditioned(classes, Z):
    """Gram matrix of the class vectors under Z, where it can be inverted with some digits left."""
    F = np.array([vector(classes, i, Z) for i in range(classes.num_classes)])
    G = F @ F.T
    assume(np.linalg.eigvalsh(G)[0] > 1e-3)
    start = np.asarray(classes.overlap) + np.eye(len(G))
    assume(np.linalg.eigvalsh(start)[0] > 1e-3)
    return F, G


def vector(classes, i, Z):
    """f_i over the support tokens."""
    row = np.searchsorted(classes.query_tokens, classes.query[i])
    score = np.asarray(classes.probs[i])[classes.support_tokens] * np.exp(np.asarray(Z[row]))
    return score / np.linalg.norm(score)


def pulled(classes, F, g):
    """Lemma 1."""
    dZ = np.zeros((len(classes.query_tokens), F.shape[1]))
    for i, m in enumerate(np.searchsorted(classes.query_tokens, classes.query)):
        dZ[m] += float(classes.weights[i]) * F[i] * (g[i] - F[i] * (F[i] @ g[i]))
    return dZ


def one_hot(tokens, size):
    return np.eye(size)[tokens]


@pytest.mark.parametrize("k", range(3))
def test_flow_is_that_of_independent_code(k):
    truth = json.loads((DATA / "levels.json").read_text())[k]
    probs = np.zeros((len(truth["P"]), truth["M"]))
    probs[:, truth["support"]] = truth["P"]
    classes = sso.SequenceClasses(probs, truth["query"], truth["next"], truth["weight"])
    rates = sso.LearningRates(truth["eta_Y"], truth["eta_Z"])
    ts = [row["t"] for row in truth["rows"]]
    run = sso.integrate(FLOWS[truth["flow"]](classes), rates, ts, rtol=1e-9, atol=1e-11)
    for k, row in enumerate(truth["rows"]):
        np.testing.assert_allclose(run.attention_logits[k], row["z"], atol=1e-6)
        np.testing.assert_allclose(run.attention[k], row["c"], atol=1e-6)
        np.testing.assert_allclose(run.entropy[k], row["entropy"], atol=1e-6)
        if "loss" in row:
            np.testing.assert_allclose(run.loss[k], row["loss"], atol=1e-6)


@pytest.mark.quick
@settings(max_examples=12, deadline=None)
@given(reference.class_sets(), st.integers(0, 2**32 - 1))
def test_modified_and_adiabatic_flow_are_their_formulas(classes, seed):
    """Straight from the paper's equations, with all M columns of Y."""
    assume(len(classes.layout.decoder.tokens) < classes.vocab_size)
    Z = random_logits(classes, seed)
    F, G = well_conditioned(classes, Z)
    M, w = classes.vocab_size, np.asarray(classes.weights)
    nexts = one_hot(classes.next_token, M)
    A = np.random.default_rng(seed).normal(size=(classes.num_classes, M))
    dual = np.linalg.inv(G) @ F
    for flow, Y, state in (
        (sso.ModifiedJointFlow(classes), F.T @ A, (jnp.asarray(F.T @ A), Z)),
        (sso.AdiabaticFlow(classes), F.T @ A, (jnp.asarray(A), Z)),
    ):
        rates = sso.LearningRates(0.7, 0.3)
        alpha = np.asarray(jax.nn.softmax(F @ Y, axis=1))
        residual = nexts - alpha
        moved, dZ = flow.derivative(0.0, state, rates)
        expected = w[:, None] * residual
        if isinstance(flow, sso.ModifiedJointFlow):
            expected = dual.T @ expected
        np.testing.assert_allclose(moved, 0.7 * expected, atol=1e-9)
        np.testing.assert_allclose(dZ, 0.3 * pulled(classes, F, residual @ Y.T), atol=1e-9)
        np.testing.assert_allclose(flow.readout(0.0, state, rates)[0], Y, atol=1e-12)


@pytest.mark.quick
@settings(max_examples=12, deadline=None)
@given(reference.class_sets(), st.integers(0, 2**32 - 1), st.floats(0.01, 1e6))
def test_slow_attention_is_its_formula(classes, seed, t):
    """Any weights, shared next tokens and all: Theorem 1's decoder, put into Lemma 1."""
    assume(classes.vocab_size > 2)
    Z = random_logits(classes, seed)
    F, G = well_conditioned(classes, Z)
    M, rates = classes.vocab_size, sso.LearningRates(0.7, 0.3)
    h = np.array([
        float(sso.decoder_clock(float(w) * t, rates, M, 1).h) for w in classes.weights
    ])  # fmt: skip
    W = h[:, None] * (M * one_hot(classes.next_token, M) - 1)
    Y = (np.linalg.inv(G) @ F).T @ W
    residual = one_hot(classes.next_token, M) - np.asarray(jax.nn.softmax(F @ Y, axis=1))
    flow = sso.SlowAttentionFlow(classes)
    dZ = flow.derivative(t, Z, rates)
    np.testing.assert_allclose(dZ, 0.3 * pulled(classes, F, residual @ Y.T), atol=1e-9)
    kept, same = flow.readout(t, Z, rates)
    columns = [int(c) if c >= 0 else other(classes) for c in classes.layout.decoder.tokens]
    np.testing.assert_allclose(kept, Y[:, columns], atol=1e-9)
    np.testing.assert_array_equal(same, Z)


def other(classes):
    """A token that is never a next token."""
    return int(np.setdiff1d(np.arange(classes.vocab_size), classes.next_tokens)[0])


@settings(max_examples=8, deadline=None)
@given(reference.class_sets(), st.integers(0, 2**32 - 1))
def test_a_flow_moves_along_the_gradient_that_it_is_told(classes, seed):
    """`along` at the gradient of J itself is the flow's own derivative."""
    Z = random_logits(classes, seed)
    well_conditioned(classes, Z)
    rng = np.random.default_rng(seed)
    J = objectives.PaddedObjective(classes)
    for flow in (sso.JointFlow, sso.ModifiedJointFlow, sso.AdiabaticFlow):
        flow = flow(classes)
        Y = jnp.zeros((len(classes.support_tokens), len(classes.layout.decoder.tokens)))
        state = flow.initial(Y, Z, ONE)
        state = (state[0] + jnp.asarray(rng.normal(size=state[0].shape)), state[1])
        _, gradient = J.value_and_gradient(*flow.readout(0.0, state, ONE))
        for a, b in zip(
            flow.along(state, gradient, ONE), flow.derivative(0.0, state, ONE), strict=True
        ):
            np.testing.assert_allclose(a, b, atol=1e-9)


def test_slow_attention_is_the_limit_of_small_attention_rates():
    """Slow → modified and adiabatic → joint, with an error ∝ η_Z/η_Y; slow does not tend to joint:
    the modified gradient changes attention at leading order."""
    classes = sso.syn_medium(1, 2, 4, 5)
    ratios = np.array([1e-3, 1e-4, 1e-5])
    rates = sso.LearningRates(1.0, ratios)
    Z = {
        name: np.asarray(sso.integrate(flow(classes), rates, [1000.0], **SHARP).attention_logits)
        for name, flow in FLOWS.items()
    }
    for fast, limit in (("modified", "slow"), ("joint", "adiabatic")):
        errors = [relative(Z[limit][k], Z[fast][k]) for k in range(3)]
        slope = np.polyfit(np.log(ratios), np.log(errors), 1)[0]
        assert abs(slope - 1) < 0.05, (limit, slope)
        assert errors[1] < 5e-4, (limit, errors)
    assert 0.25 < relative(Z["slow"][2], Z["joint"][2]) < 0.28


def test_leading_order_drops_terms_of_one_over_the_vocabulary():
    sizes, errors = np.array([1000, 4000]), []
    for size in sizes:
        classes = sso.single_common_token(5, int(size), 0.1, 4)
        full, leading = (
            sso.integrate(sso.SlowAttentionFlow(classes, leading_order=flag), ONE, [300.0], **SHARP)
            for flag in (False, True)
        )
        errors.append(relative(leading.attention_logits, full.attention_logits))
    assert errors[0] < 0.03
    slope = np.polyfit(np.log(sizes), np.log(errors), 1)[0]
    assert abs(slope + 1) < 0.1


@pytest.mark.parametrize("seed", range(2))
def test_leading_order_is_the_papers_form(seed):
    """gᵢ = γᵢ (ι fᵢ − Σ β_ij fⱼ), β = I − G⁻¹, for distinct next tokens and any weights."""
    base, rates = entangled(seed, None), sso.LearningRates(0.7, 0.3)
    weights = np.random.default_rng(seed).dirichlet(np.ones(3))
    classes = sso.SequenceClasses(base.probs, base.query, [14, 15, 16], weights)
    flow = sso.SlowAttentionFlow(classes, leading_order=True)
    Z = random_logits(classes, seed)
    F = np.array([vector(classes, i, Z) for i in range(3)])
    beta = np.eye(3) - np.linalg.inv(F @ F.T)
    gamma = [float(sso.decoder_clock(w * 9.0, rates, 17, 1).gamma) for w in weights]
    g = -np.array(gamma)[:, None] * ((beta - np.diag(np.diag(beta))) @ F)
    np.testing.assert_allclose(
        flow.derivative(9.0, Z, rates), 0.3 * pulled(classes, F, g), atol=1e-9
    )


def test_closed_form_is_slow_attention_of_small_overlap():
    """Where 1/M ≪ overlap ≪ 1/K: it leaves the leading order in proportion to the overlap, and the
    whole flow by 1/(M·overlap) more."""
    per_overlap = []
    for mass, size in ((0.03, 10**5), (0.01, 10**6), (0.003, 10**7)):
        classes = sso.single_common_token(5, size, mass, 4)
        overlap, ts = float(classes.overlap[0, 1]), [10.0, 1e4]
        closed = sso.closed_form(classes, ONE, ts)
        assert np.abs(np.asarray(closed.attention_logits).sum(-1)).max() < 1e-9
        leading = sso.SlowAttentionFlow(classes, leading_order=True)
        exact, whole = (
            sso.integrate(flow, ONE, ts, **SHARP)
            for flow in (leading, sso.SlowAttentionFlow(classes))
        )
        error = relative(closed.attention_logits, exact.attention_logits)
        per_overlap.append(error / overlap)
        error = relative(closed.attention_logits, whole.attention_logits)
        assert error < 6 * overlap + 1 / (size * overlap)
        np.testing.assert_allclose(closed.loss, whole.loss, rtol=1e-9)
    np.testing.assert_allclose(per_overlap, 4.6, rtol=0.15)


def in_time(flow):
    """The same flow, which does not know of its intrinsic time."""
    flow = type(flow)(flow.classes)
    object.__setattr__(flow, "has_intrinsic_time", False)
    return flow


def test_one_solve_in_intrinsic_time_serves_all_rates():
    """4,096 pairs of rates equal 64 solved one by one, for as many right-hand sides as the pair
    that goes farthest; and equal solves in t, which know nothing of Γ."""
    flow = sso.SlowAttentionFlow(sso.single_common_token(10, 1000, 0.1, 10))
    rng = np.random.default_rng(0)
    decoder, attending = 10.0 ** rng.uniform(-1, 1, (2, 4096))
    ts = np.geomspace(1, 1e5, 50)
    batch = sso.integrate(flow, sso.LearningRates(decoder, attending), ts, rtol=1e-9, atol=1e-11)
    assert batch.attention_logits.shape == (4096, 50, 1, 101)

    def single(i, flow=flow, rtol=1e-9, atol=1e-11):
        rates = sso.LearningRates(decoder[i], attending[i])
        return sso.integrate(flow, rates, ts, rtol=rtol, atol=atol)

    chosen = rng.choice(4096, 64, replace=False)
    for i in chosen:
        np.testing.assert_allclose(batch.attention_logits[i], single(i).attention_logits, atol=1e-7)
    i = chosen[0]
    in_t = single(i, in_time(flow), rtol=1e-11, atol=1e-13)
    np.testing.assert_allclose(batch.attention_logits[i], in_t.attention_logits, atol=1e-7)
    np.testing.assert_allclose(batch.at(i).decoder, in_t.decoder, atol=1e-6)
    farthest = single(np.argmax(attending / decoder * np.log1p(1000 * decoder * 1e4) ** 2))

    def tried(run):
        kinds = ("accepted_steps", "rejected_steps")
        return sum(int(np.max(run.stats[kind])) for kind in kinds)

    assert tried(batch) <= 1.5 * tried(farthest)
    with pytest.raises(ValueError, match=r"decoder would be a dense 4,096 x 50 x 101 x 11 array"):
        _ = batch.decoder


def test_derivatives_through_the_intrinsic_time():
    flow, ts = sso.SlowAttentionFlow(sso.syn_small()), np.array([3.0, 300.0])

    def entropy(log_rates):
        rates = sso.LearningRates(*jnp.exp(log_rates))
        return jnp.sum(sso.integrate(flow, rates, ts, rtol=1e-10, atol=1e-12).entropy)

    point, step = jnp.array([0.3, -0.5]), 1e-4
    for k, slope in enumerate(jax.grad(entropy)(point)):
        away = step * jnp.eye(2)[k]
        difference = (entropy(point + away) - entropy(point - away)) / (2 * step)
        np.testing.assert_allclose(slope, difference, rtol=1e-5)


def test_each_class_has_its_own_clock_where_weights_differ():
    base = sso.syn_small()
    flow = sso.SlowAttentionFlow(
        sso.SequenceClasses(base.probs, base.query, base.next_token, [0.9, 0.1])
    )
    assert not flow.has_intrinsic_time
    with pytest.raises(ValueError, match=r"weights must be equal .* own clock .* integrate\(\)"):
        flow.intrinsic_time(1.0, ONE)
    rates = sso.LearningRates(np.array([0.5, 1.0]), 0.1)
    run = sso.integrate(flow, rates, [1.0, 100.0])
    f = np.asarray(run.attention)
    f = f / np.linalg.norm(f, axis=-1, keepdims=True)
    scores = f @ np.asarray(run.decoder)  # (M−1) h at the next token, −h elsewhere
    for i, w in enumerate((0.9, 0.1)):
        h = sso.decoder_clock(w * np.asarray(run.ts), rates, 34, 1).h
        np.testing.assert_allclose(scores[:, :, i, i], 33 * np.asarray(h), rtol=1e-9)
        np.testing.assert_allclose(scores[:, :, i, -1], -np.asarray(h), rtol=1e-9)


def test_common_token_flow_is_theorem_4():
    rates = sso.LearningRates(np.array([0.5, 2.0]), np.array([3.0, 0.2]))
    ts = np.geomspace(0.1, 1e6, 9)
    flow = sso.CommonTokenFlow(1000, 10, c0=0.7)
    run = sso.integrate(flow, rates, ts, **SHARP)
    bound = sso.growth_bound(ts, rates, 1000, 10, 0.7)
    np.testing.assert_allclose(run.attention_logits[..., 0, 0], -np.asarray(bound), rtol=1e-8)
    one = sso.LearningRates(0.5, 3.0)
    in_t = sso.integrate(in_time_common(flow), one, ts, **SHARP)
    np.testing.assert_allclose(in_t.attention_logits[:, 0, 0], -np.asarray(bound)[0], rtol=1e-8)
    assert np.isnan(run.decoder).all()


def in_time_common(flow):
    flow = sso.CommonTokenFlow(flow.classes.vocab_size, flow.classes.num_classes, flow.c0)

    class InTime(type(flow)):
        has_intrinsic_time = False

    object.__setattr__(flow, "__class__", InTime)
    return flow


def entangled(probs_seed, weights):
    """Three classes of three distinct tokens each; two share a query, two a next token, and the
    five common tokens are held here and there."""
    rng = np.random.default_rng(probs_seed)
    held = np.zeros((3, 17), bool)
    for i, common in enumerate(((0, 1, 3), (0, 2, 3, 4), (1, 2))):
        held[i, [*common, *range(5 + 3 * i, 8 + 3 * i)]] = True
    probs = rng.dirichlet(np.ones(17), 3) * held
    probs /= probs.sum(1, keepdims=True)
    return sso.SequenceClasses(probs, [14, 14, 15], [16, 15, 16], weights)


@pytest.mark.parametrize("name", ["slow", "adiabatic"])
@pytest.mark.parametrize("seed", range(4))
def test_theorem_3_conserves_differences_of_inverse_squares(name, seed):
    """c̃_l⁻² − c̃_l'⁻² of a class's distinct tokens, for any weights, queries and next tokens."""
    weights = np.random.default_rng(seed + 100).dirichlet(np.ones(3))
    classes = entangled(seed, weights)
    run = sso.integrate(FLOWS[name](classes), ONE, [0.0, 3.0, 50.0], **SHARP)
    for i in range(3):
        kept = invariant(run, i)
        assert np.ptp(kept, axis=0).max() < 1e-8
        assert np.abs(kept).max() > 1e-2
    assert np.abs(run.attention_logits[-1]).max() > 0.05


def invariant(run, i):
    """(T, d) of the distinct tokens of class i."""
    classes = run.classes
    tokens = classes.distinct_tokens(i)
    row = np.searchsorted(classes.query_tokens, classes.query[i])
    columns = np.searchsorted(classes.support_tokens, tokens)
    logits = run.attention_logits[:, row : row + 1][..., columns]
    return np.asarray(growth.invariant(classes.probs[i][tokens][None], logits))[:, 0]


def test_theorem_3_is_no_invariant_of_the_joint_flow():
    """Reported, not a law: there the decoder's own history moves attention."""
    run = sso.integrate(sso.JointFlow(sso.syn_small()), ONE, [0.0, 50.0], **SHARP)
    assert np.ptp(invariant(run, 0), axis=0).max() > 1e-3


@pytest.mark.quick
@settings(max_examples=20, deadline=None)
@given(
    st.integers(2, 5), st.integers(3, 6), st.floats(0.02, 0.3), st.integers(0, 2**32 - 1)
)  # fmt: skip
def test_theorem_2_distinct_tokens_gain_and_a_single_common_one_loses(K, d, mass, seed):
    """dz_l = η_Z w_i f_l² ξ_i with ξ_i > 0 where every row sum of E is at most 1."""
    classes = common_and_random_distinct(K, d, mass, seed)
    E = np.asarray(classes.overlap)
    assume((E.sum(1) <= 1).all())
    flow, M = sso.SlowAttentionFlow(classes), classes.vocab_size
    Z = jnp.zeros((1, len(classes.support_tokens)))
    speed = np.asarray(flow.intrinsic_derivative(Z))[0]
    assert speed[0] < 0
    assert (speed[1:] > 0).all()
    inverse = np.linalg.inv(E + np.eye(K))
    diagonal = np.diag(inverse) - 1 - (inverse.sum(1) - 1) / M
    xi = (M / (M - 1)) ** 2 * diagonal
    f = np.array([vector(classes, i, Z) for i in range(K)])
    for i in range(K):
        columns = np.searchsorted(classes.support_tokens, classes.distinct_tokens(i))
        np.testing.assert_allclose(speed[columns], f[i, columns] ** 2 * xi[i] / K, rtol=1e-9)


def common_and_random_distinct(K, d, mass, seed):
    """One query; token 0 common with about that mass; random distinct tokens."""
    rng = np.random.default_rng(seed)
    M = 2 + K * (d + 1)
    probs = np.zeros((K, M))
    for i in range(K):
        probs[i, 0] = mass
        probs[i, 1 + i * d : 1 + (i + 1) * d] = (1 - mass) * rng.dirichlet(np.full(d, 2.0))
    return sso.SequenceClasses(probs, np.full(K, M - K - 1), M - K + np.arange(K))


@settings(max_examples=12, deadline=None)
@given(st.floats(0.02, 0.3), st.integers(0, 2**32 - 1))
def test_theorem_3_bounds_the_growth_of_a_dominant_token(mass, seed):
    """exp(2 f(0)² B) ≤ χ ≤ exp(2B), B = η_Z w ∫ξ, where ξ > 0 and the common token loses."""
    K, d = 3, 4  # one layout: one program
    classes = common_and_random_distinct(K, d, mass, seed)
    assume((np.asarray(classes.overlap).sum(1) <= 1).all())
    flow, M = sso.SlowAttentionFlow(classes), classes.vocab_size
    ts = np.linspace(0, 40, 401)
    run = sso.integrate(flow, ONE, ts, **SHARP)
    gamma = np.asarray(sso.decoder_clock(ts, ONE, M, K).gamma)
    Z = np.asarray(run.attention_logits)
    F = np.stack([[vector(classes, i, z) for i in range(K)] for z in Z])
    inverse = np.linalg.inv(np.einsum("tis,tjs->tij", F, F))
    common = np.diff(Z[:, 0, 0])
    assert (common < 0).all()
    for i in range(K):
        extra = (inverse.sum(2)[:, i] - 1) / M
        xi = gamma * (M / (M - 1)) ** 2 * (inverse[:, i, i] - 1 - extra)
        assume((xi[1:] > 0).all())
        B = np.concatenate([[0], np.cumsum((xi[1:] + xi[:-1]) / 2 * np.diff(ts))]) / K
        own = np.searchsorted(classes.support_tokens, classes.distinct_tokens(i))
        dominant = own[np.argmax(F[0, i, own])]
        chi = np.exp(2 * (Z[:, 0, dominant] - Z[0, 0, dominant]))
        slack = 1 + 1e-3 * np.maximum(B, 1e-12)  # of the trapezia
        assert (np.exp(2 * F[0, i, dominant] ** 2 * B) <= chi * slack).all()
        assert (chi <= np.exp(2 * B) * slack).all()


@pytest.mark.parametrize("name", FLOWS)
def test_attention_starts_with_the_square_of_time(name):
    """z_m = ½ η_Y η_Z t² Σ wᵢ fᵢ ∘ (I − fᵢfᵢᵀ) F vᵢ, v_ij = w_j (s_ij − 1/M), and G⁻¹vᵢ in place of
    vᵢ under the modified gradient."""
    classes = sso.syn_medium(2, num_common=3, num_distinct=2)
    F = np.array([vector(classes, i, np.zeros((2, 11))) for i in range(4)])
    same = np.equal.outer(classes.next_token, classes.next_token)
    v = (same - 1 / classes.vocab_size) / 4
    if name in ("modified", "slow"):
        v = v @ np.linalg.inv(F @ F.T)
    law = 0.5 * 2.0 * 3.0 * pulled(classes, F, v @ F)
    ts = np.array([1e-3, 2e-3, 4e-3])
    run = sso.integrate(
        FLOWS[name](classes), sso.LearningRates(2.0, 3.0), ts, rtol=1e-12, atol=1e-18
    )
    errors = [
        relative(np.asarray(z) / t**2, law) for z, t in zip(run.attention_logits, ts, strict=True)
    ]
    assert errors[0] < 3e-3
    assert abs(np.polyfit(np.log(ts), np.log(errors), 1)[0] - 1) < 0.1


def test_movement_of_distinct_tokens_follows_the_decoders_energy():
    """(ż_l/η_Z − d|Y_l|²/dt/(2η_Y))/f_l² = −wᵢ fᵢ·gᵢ for each distinct token l of class i."""
    classes, rates = sso.syn_small(), sso.LearningRates(2.0, 0.5)
    flow = sso.JointFlow(classes)
    rng = np.random.default_rng(3)
    shapes = (30, 3), (2, 30)
    Y, Z = (jnp.asarray(rng.normal(size=s)) for s in shapes)
    multiplicity = classes.layout.decoder.multiplicity
    dY, dZ = flow.derivative(0.0, (Y, Z), rates)
    power = 2 * np.sum(np.asarray(Y * dY) * multiplicity, axis=1)
    for i in range(2):
        f = vector(classes, i, Z)
        scores = jnp.asarray(f) @ Y
        alpha = np.exp(scores) * multiplicity
        along = float(scores @ (np.eye(3)[i] - alpha / alpha.sum()))
        l = np.searchsorted(classes.support_tokens, classes.distinct_tokens(i))  # noqa: E741
        left = (dZ[i, l] / 0.5 - power[l] / 4.0) / f[l] ** 2
        np.testing.assert_allclose(left, -0.5 * along, rtol=1e-10)


@pytest.mark.parametrize("name", FLOWS)
def test_row_sums_stay_zero_and_far_times_are_reached(name):
    """To t = 1e12 in a hundred steps or so: attention moves in ln ln t."""
    classes = sso.syn_small()
    run = sso.integrate(FLOWS[name](classes), sso.LearningRates(1.0, 0.1), [10.0, 1e12])
    assert run.stats["accepted_steps"] < 500
    assert np.abs(np.asarray(run.attention_logits).sum(-1)).max() < 1e-9
    multiplicity = classes.layout.decoder.multiplicity
    assert np.abs(np.asarray(run.decoder) @ multiplicity).max() < 1e-8


@pytest.mark.parametrize("name", ["modified", "slow"])
def test_single_precision(name, single_precision):
    classes = sso.syn_small()
    run = sso.integrate(FLOWS[name](classes), ONE, [10.0, 100.0])
    assert run.attention_logits.dtype == run.decoder.dtype == jnp.float32
    assert np.isfinite(run.decoder).all()


def test_continued_and_saved_like_any_other(tmp_path):
    flow = sso.SlowAttentionFlow(sso.syn_small())
    whole = sso.integrate(flow, ONE, [10.0, 100.0], rtol=1e-10)
    begun = sso.integrate(flow, ONE, [5.0, 10.0], rtol=1e-10)
    on = sso.integrate(flow, ONE, [100.0], init=begun, rtol=1e-10)
    np.testing.assert_allclose(on.attention_logits[1:], whole.attention_logits, atol=1e-7)
    loaded = sso.load(whole.save(tmp_path / "slow.nc"))
    np.testing.assert_array_equal(loaded.decoder, whole.decoder)
    np.testing.assert_allclose(loaded.loss, whole.loss, rtol=1e-12)
    assert "computed when asked for" in repr(whole)
    c = whole.attention[0]
    np.testing.assert_allclose(whole.entropy[0], attention.entropy(c), rtol=1e-12)
