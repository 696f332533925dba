"""The closed forms: the decoder's clock, the growth of attention, the size of samples."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from scipy.integrate import solve_ivp
from scipy.special import lambertw

import scan_snap_ode as sso
from scan_snap_ode.theory.concentration import class_count_radius, hoeffding_radius
from scan_snap_ode.theory.decoder_clock import discrete_height
from scan_snap_ode.theory.growth import (
    growth_asymptote,
    growth_factor,
    growth_factor_bounds,
    invariant,
    relative_gain,
)

TRUTH = json.loads((Path(__file__).parent / "data/clock.json").read_text())["rows"]
VOCABULARIES = [4, 34, 100, 1000, 10**6]
unit = sso.LearningRates(1.0, 1.0)


@jax.jit
def formulas(t, eta_Y, eta_Z, M, K, c0):
    """h, γ, Γ and B, with everything traced."""
    rates = sso.LearningRates(eta_Y, eta_Z)
    clock = sso.decoder_clock(t, rates, M, K)
    return jnp.stack([clock.h, clock.gamma, clock.Gamma, sso.growth_bound(t, rates, M, K, c0)], -1)


def reference(t, eta_Y, eta_Z, M, K, c0):
    """The same from their definitions, by bisection in extended precision."""
    t, eta_Y, eta_Z, M, K, c0 = map(np.longdouble, (t, eta_Y, eta_Z, M, K, c0))
    x = M * eta_Y * t / K
    low, high = np.zeros_like(x), np.minimum(x / M, np.log1p(x))
    for _ in range(100):
        u = (low + high) / 2
        below = np.expm1(u) + (M - 1) * u < x
        low, high = np.where(below, u, low), np.where(below, high, u)
    h = (low + high) / 2 / M
    gamma = (M - 1) ** 2 * h / (M - 1 + np.exp(M * h))
    Gamma = eta_Z * K * (M - 1) ** 2 * h**2 / (2 * eta_Y)
    return np.stack([h, gamma, Gamma, np.log1p(4 * Gamma / c0) / 4], -1)


def logarithmic(low, high):
    return st.floats(np.log(low), np.log(high)).map(lambda x: float(np.exp(x)))


SETTINGS = st.tuples(
    st.just(0.0) | logarithmic(1e-6, 1e15),  # t
    logarithmic(1e-6, 1e3),  # η_Y
    logarithmic(1e-6, 1e3),  # η_Z
    logarithmic(2, 1e6).map(round),  # M
    st.integers(1, 1000),  # K
    logarithmic(1e-3, 1e3),  # C₀
)
EXTREMES = [
    (t, eta_Y, 1.0, M, 1, 1.0) for t in (1.0, 1e15) for eta_Y in (1e-6, 1e3) for M in (2, 10**6)
]


# ------------------------------------------------------------------------------ the clock's values


@pytest.mark.quick
@pytest.mark.parametrize("row", TRUTH, ids=lambda row: f"M={row['M']} t={row['t']:g}")
def test_clock_and_bound_against_25_digits(row):
    rates = sso.LearningRates(row["eta_Y"], row["eta_Z"])
    clock = sso.decoder_clock(row["t"], rates, row["M"], row["K"])
    B = sso.growth_bound(row["t"], rates, row["M"], row["K"], row["C0"])
    computed = [clock.h, clock.gamma, clock.Gamma, B]
    expected = [float(row[name]) for name in ("h", "gamma", "Gamma", "B")]
    np.testing.assert_allclose(computed, expected, rtol=1e-12, atol=0)


@settings(max_examples=100, deadline=None)
@given(SETTINGS)
def test_double_precision_everywhere(setting):
    np.testing.assert_allclose(formulas(*setting), reference(*setting), rtol=1e-12, atol=0)


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(SETTINGS)
def test_single_precision_everywhere(single_precision, setting):
    setting = [np.float32(x) for x in setting]
    computed = formulas(*setting)
    assert computed.dtype == jnp.float32
    np.testing.assert_allclose(computed, reference(*setting), rtol=1e-5, atol=0)


@pytest.mark.parametrize("t", [10**15, [10**15], np.array([1e15])])
def test_times_of_any_type_in_single_precision(t, single_precision):
    """Integers beyond 32 bits among them."""
    h = sso.decoder_clock(t, sso.LearningRates(0.5, 1.0), 1000, 10).h
    assert h.dtype == jnp.float32
    np.testing.assert_allclose(h, reference(1e15, 0.5, 1, 1000, 10, 1)[0], rtol=1e-5)


@pytest.mark.quick
def test_clock_starts_at_zero_exactly():
    start = formulas(0.0, 0.3, 0.7, 1000.0, 7.0, 0.2)
    assert np.array_equal(start, np.zeros(4))


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float64, 1e-12), (np.float32, 1e-5)])
def test_corners_of_the_range(dtype, rtol, request):
    if dtype is np.float32:
        request.getfixturevalue("single_precision")
    setting = [np.array(x, dtype) for x in zip(*EXTREMES, strict=True)]
    computed = jax.vmap(formulas)(*setting)
    assert computed.dtype == dtype
    np.testing.assert_allclose(computed, reference(*setting), rtol=rtol, atol=0)


def test_axes_of_the_rates_lead():
    rates = sso.LearningRates(np.array([[0.5], [1.0], [2.0]]), np.array([0.1, 0.2]))
    t = np.array([[0.0, 1, 10, 100]]).T
    clock = sso.decoder_clock(t, rates, 50, 3)
    B = sso.growth_bound(t, rates, 50, 3, 0.5)
    asymptote = growth_asymptote(t, rates, 50, 3, 0.5)
    for values in (clock.h, clock.gamma, clock.Gamma, B, asymptote):
        assert values.shape == (3, 2, 4, 1)
    alone = formulas(t[2, 0], 2.0, 0.2, 50.0, 3.0, 0.5)
    at = (2, 1, 2, 0)
    np.testing.assert_allclose([clock.h[at], clock.gamma[at], clock.Gamma[at], B[at]], alone)
    times = sso.transition_times(rates, 50, 3)
    assert all(x.shape == (3, 2) for x in jax.tree.leaves(times))
    assert discrete_height(5, rates, 50).shape == (3, 2, 6)


def test_eager_jit_and_vmap_agree():
    ts = np.geomspace(1, 1e9, 7)
    clock = sso.decoder_clock(ts, sso.LearningRates(0.3, 2.0), 1000, 10)
    eager = np.stack([clock.h, clock.gamma, clock.Gamma], -1)
    compiled = formulas(ts, 0.3, 2.0, 1000.0, 10.0, 1.0)
    lanes = jax.vmap(lambda t: formulas(t, 0.3, 2.0, 1000.0, 10.0, 1.0))(ts)
    np.testing.assert_allclose(compiled[:, :3], eager, rtol=1e-13)
    np.testing.assert_allclose(lanes, compiled, rtol=1e-13)


# --------------------------------------------------------------------------------- its derivatives

POINTS = [
    (3.0, 0.7, 0.2, 30.0, 2.0, 0.5),
    (800.0, 0.1, 0.2, 1000.0, 10.0, 2.0),  # about the peak of γ
    (1e6, 5.0, 3.0, 1e5, 7.0, 0.01),
]


JACOBIANS = {mode: jax.jit(mode(formulas, argnums=range(6))) for mode in (jax.jacfwd, jax.jacrev)}


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("mode", JACOBIANS)
def test_derivatives_in_every_argument(point, mode):
    """∂ ln(h, γ, Γ, B)/∂ ln(t, η_Y, η_Z, M, K, C₀), against differences of the reference."""
    theta, step = np.log(np.longdouble(point)), 1e-4
    differences = np.stack(
        [
            np.log(reference(*np.exp(theta + d)) / reference(*np.exp(theta - d))) / (2 * step)
            for d in step * np.eye(6)
        ],
        -1,
    )
    derivatives = np.stack(JACOBIANS[mode](*point), -1)  # (4, 6)
    logarithmic = derivatives * np.array(point) / np.asarray(formulas(*point))[:, None]
    np.testing.assert_allclose(logarithmic, differences, rtol=0, atol=1e-7)


_curvature = jax.jit(jax.jacfwd(jax.jacrev(formulas)))


@pytest.mark.parametrize("point", POINTS)
def test_differential_equations(point):
    """Of h (paper, Lemma 6), of Γ, and of the common token's logit z = −B (Theorem 4)."""
    _, eta_Y, eta_Z, M, K, c0 = point
    h, gamma, _, B = np.asarray(formulas(*point))
    h_dot, _, Gamma_dot, B_dot = np.asarray(JACOBIANS[jax.jacrev](*point)[0])
    D = M - 1 + np.exp(M * h)
    np.testing.assert_allclose(h_dot, eta_Y / K / D, rtol=1e-12)
    np.testing.assert_allclose(Gamma_dot, eta_Z * gamma, rtol=1e-12)
    np.testing.assert_allclose(-B_dot, -eta_Z * gamma * np.exp(-4 * B) / c0, rtol=1e-12)
    h_dot_dot = -((eta_Y / K) ** 2) * M * np.exp(M * h) / D**3
    np.testing.assert_allclose(_curvature(*point)[0], h_dot_dot, rtol=1e-12)


@pytest.mark.parametrize("mode", JACOBIANS)
def test_derivatives_at_zero(mode):
    in_time, *others = JACOBIANS[mode](0.0, 0.5, 2.0, 20.0, 4.0, 1.0)
    expected = [0.5 / 4 / 20, 0.5 / 4 / 20 * 19**2 / 20, 0, 0]
    np.testing.assert_allclose(in_time, expected, rtol=1e-14)
    assert np.array_equal(others, np.zeros((5, 4)))


# ------------------------------------------------------------------- the discrete clock, and times

NUM_VISITS = 100
_discrete = jax.jit(lambda eta, M: discrete_height(NUM_VISITS, sso.LearningRates(eta, 1.0), M))


@settings(max_examples=100, deadline=None)
@given(logarithmic(1e-4, 1e3), logarithmic(2, 1e6).map(round))
def test_discrete_clock(eta, M):
    """By its recursion, and within η_Y/M above the continuous one (paper, Lemmas 5 and 7)."""
    computed = _discrete(eta, float(M))
    expected = [0.0]
    for _ in range(NUM_VISITS):
        decay = np.exp(-M * expected[-1])
        expected.append(expected[-1] + eta * decay / (1 + (M - 1) * decay))
    np.testing.assert_allclose(computed, expected, rtol=1e-11)
    visits = np.arange(NUM_VISITS + 1.0)
    continuous = formulas(visits, eta, 1.0, float(M), 1.0, 1.0)[:, 0]
    excess = np.asarray(computed - continuous)
    rounding = 1e-13 * continuous
    assert np.all(excess >= -rounding)
    assert np.all(excess <= eta / M + rounding)
    assert excess[1] > 0.1 * eta / M * (1 - M * continuous[1] / eta) - rounding[1]


@pytest.mark.quick
@pytest.mark.parametrize("M", VOCABULARIES)
def test_peak_of_the_drive(M):
    """γ peaks at M h = 1 + W₀((M−1)/e) with the value ((M−1)/M) W₀((M−1)/e)."""
    rates, K = sso.LearningRates(0.3, 2.0), 7
    times = sso.transition_times(rates, M, K)
    w = lambertw((M - 1) / np.e).real
    np.testing.assert_allclose(times.peak_speed, (M - 1) / M * w, rtol=1e-14)
    clock = sso.decoder_clock(times.peak, rates, M, K)
    np.testing.assert_allclose([M * clock.h, clock.gamma], [1 + w, times.peak_speed], rtol=1e-12)
    grid = np.asarray(times.peak) * np.geomspace(0.5, 2, 20_001)
    gamma = np.asarray(sso.decoder_clock(grid, rates, M, K).gamma)
    np.testing.assert_allclose(gamma.max(), times.peak_speed, rtol=1e-7)
    np.testing.assert_allclose(grid[gamma.argmax()], times.peak, rtol=1e-4)


def test_peak_of_the_drive_for_a_thousand_tokens():
    assert abs(sso.transition_times(unit, 1000, 10).peak_speed - 4.41608) < 5e-6


@pytest.mark.quick
@pytest.mark.parametrize("M", VOCABULARIES)
def test_transition_times(M):
    """u₁ = −W₋₁(−1/(M−1)), the larger root of e^u = (M−1) u (paper, Lemma 8)."""
    rates, K = sso.LearningRates(0.3, 2.0), 7
    times = sso.transition_times(rates, M, K)
    u = -lambertw(-1 / (M - 1), -1).real
    np.testing.assert_allclose(times.t0_prime, K * np.log(M) / 0.3, rtol=1e-14)
    np.testing.assert_allclose(times.t0, 2 * u * K / 0.3, rtol=1e-13)
    factor = 2 * (1 + times.delta) * np.log(M)
    np.testing.assert_allclose(times.t0, factor * K / 0.3, rtol=1e-13)
    height = M * sso.decoder_clock(times.crossing, rates, M, K).h
    np.testing.assert_allclose(height, u, rtol=1e-13)
    np.testing.assert_allclose(np.exp(height), (M - 1) * height, rtol=1e-12)
    np.testing.assert_allclose(times.crossing, times.t0 * (1 - (1 + 0.5 / u) / M), rtol=1e-13)


@pytest.mark.parametrize(
    ("M", "delta"), [(34, 0.4553), (100, 0.4030), (1000, 0.3198), (10**6, 0.2035)]
)
def test_delta(M, delta):
    assert abs(sso.transition_times(unit, M, 10).delta - delta) < 5e-5


@pytest.mark.parametrize("M", VOCABULARIES)
def test_transition_times_in_single_precision(M, single_precision):
    times = sso.transition_times(sso.LearningRates(0.3, 2.0), M, 7)
    u, w = -lambertw(-1 / (M - 1), -1).real, lambertw((M - 1) / np.e).real
    assert times.t0.dtype == jnp.float32
    np.testing.assert_allclose(times.t0, 2 * u * 7 / 0.3, rtol=1e-5)
    np.testing.assert_allclose(times.peak_speed, (M - 1) / M * w, rtol=1e-5)


# ---------------------------------------------------------------------------- growth of attention


@pytest.mark.parametrize("c0", [1e-3, 1.0])
def test_bound_tends_to_its_asymptote(c0):
    """With the error that `growth_asymptote` states, to first order."""
    M, K, rates = 1000, 10, sso.LearningRates([0.5, 5.0], 0.5)
    t = np.geomspace(1e5, 1e13, 5)
    B = np.asarray(sso.growth_bound(t, rates, M, K, c0))
    error = B - np.asarray(growth_asymptote(t, rates, M, K, c0))
    Gamma = np.asarray(sso.decoder_clock(t, rates, M, K).Gamma)
    x = M * np.asarray(rates.decoder)[:, None] * t / K
    np.testing.assert_allclose(error, c0 / 16 / Gamma - (M - 1) / 2 / x, rtol=0.03, atol=1e-14)
    assert np.all(np.abs(error[:, -1]) < 2e-3 * c0)


@pytest.mark.quick
def test_asymptote_is_nan_before_it_means_anything():
    values = growth_asymptote([0.0, 1e-3, 1e6], unit, 1000, 10, 1.0)
    assert np.isnan(values).tolist() == [True, True, False]


SCORES = np.array([0.4, 0.3, 0.2, 0.1])


@pytest.fixture(scope="module")
def theorem_2():
    """Logits of four distinct tokens, dz_l/dt = f_l² (paper, Theorem 2 with ξ = 1), so B = t."""

    def field(_, z):
        c = SCORES * np.exp(z)
        return (c / np.linalg.norm(c)) ** 2

    t = np.array([0, 0.1, 1, 3])
    return t, solve_ivp(field, (0, 3), np.zeros(4), "DOP853", t, rtol=1e-12, atol=1e-14).y.T


def test_theorem_3(theorem_2):
    """r(t) = r(0) χ(t), and χ of the dominant token within its bounds."""
    t, z = theorem_2
    c = SCORES * np.exp(z)
    f = jnp.asarray(c / np.linalg.norm(c, axis=1, keepdims=True))
    factor = np.asarray(growth_factor(jnp.asarray(z), jnp.zeros((4, 4))))
    assert factor[-1, 0] > 2
    for token in range(4):
        gain = relative_gain(f, jnp.full(4, token))
        expected = (SCORES[token] / SCORES) ** 2 - 1
        np.testing.assert_allclose(gain[0], expected, rtol=1e-12)
        np.testing.assert_allclose(gain, expected * factor[:, [token]], rtol=1e-9, atol=1e-14)
    low, high = growth_factor_bounds(jnp.broadcast_to(f[0, 0], t.shape), jnp.asarray(t))
    assert np.all(low[1:] < factor[1:, 0])
    assert np.all(factor[1:, 0] < high[1:])
    np.testing.assert_allclose(low, np.exp(2 * SCORES[0] ** 2 / np.sum(SCORES**2) * t), rtol=1e-14)
    np.testing.assert_allclose(high, np.exp(2 * t), rtol=1e-14)


def test_invariant_is_conserved(theorem_2):
    """Of two classes, padded at either end, at different times."""
    _, z = theorem_2
    order, far = [3, 1, 0, 2], np.full((4, 1), 9.0)
    probs = np.stack([np.r_[SCORES, 0], np.r_[0, SCORES[order]]])
    logits = np.stack([np.hstack([z, far]), np.hstack([-far, z[::-1, order]])], 1)
    values = np.asarray(invariant(jnp.asarray(probs), jnp.asarray(logits)))
    expected = np.where(probs > 0, 1 - (probs / 0.4) ** 2, 0)
    np.testing.assert_allclose(values, np.broadcast_to(expected, values.shape), atol=1e-10)
    assert np.all(values[:, probs == 0] == 0)
    moved = logits.copy()
    moved[-1, 0, 1] += 1e-6
    drift = np.asarray(invariant(jnp.asarray(probs), jnp.asarray(moved)))[-1] - expected
    assert np.abs(drift).max() > 1e-7


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**32 - 1), logarithmic(1e-3, 1e3))
def test_invariant_is_what_it_says(seed, scale):
    rng = np.random.default_rng(seed)
    probs, z = rng.dirichlet(np.ones(5), 3), rng.normal(0, 2, (3, 5))
    c = probs * np.exp(z)
    largest = np.take_along_axis(c, probs.argmax(-1)[:, None], -1)
    expected = probs**2 * (c**-2 - largest**-2)
    computed = invariant(jnp.asarray(scale * probs), jnp.asarray(z))
    size = probs**2 * (c**-2 + largest**-2)
    np.testing.assert_allclose(computed / size, expected / size, rtol=0, atol=1e-14)


def test_invariant_without_tokens_has_no_nan_in_its_derivatives():
    probs = jnp.array([[0.5, 0.25, 0.0], [0.0, 0.0, 0.0]])
    logits = jnp.array([[0.1, 0.2, 1e4], [-1e4, 0, 1e4]])
    for argument in (0, 1):
        slopes = jax.jit(jax.jacrev(invariant, argument))(probs, logits)
        assert np.isfinite(slopes).all()
        assert np.any(slopes)


# ---------------------------------------------------------------------------------------- samples


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01])
def test_tokens_stray_no_farther(delta):
    """Windows of 127 contextual tokens: one token's share, and all shares at once."""
    rng = np.random.default_rng(0)
    probs = np.array([0.5, 0.3, 0.1, 0.06, 0.04])
    shares = rng.multinomial(127, probs, 20_000) / 127
    one = float(hoeffding_radius(128, delta))
    np.testing.assert_allclose(one, np.sqrt(np.log(2 / delta) / (2 * 127)), rtol=1e-15)
    far = np.abs(shares - probs)
    assert np.all(np.mean(far > one, axis=0) <= delta)
    assert np.mean(far[:, 0] > one / 3) > delta  # not for want of strictness
    every = float(hoeffding_radius(128, delta, 5))
    np.testing.assert_allclose(every, np.sqrt(np.log(10 / delta) / (2 * 127)), rtol=1e-15)
    assert np.mean(far.max(1) > every) <= delta


@pytest.mark.parametrize("delta", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("K", [2, 7, 100])
def test_classes_stray_no_farther(K, delta):
    N = 1280
    radius = float(class_count_radius(N, delta))
    np.testing.assert_allclose(radius, np.sqrt(N * np.log(2 / delta) / 2) + 1, rtol=1e-15)
    counts = np.random.default_rng(0).binomial(N, 1 / K, 20_000)
    assert np.mean(np.abs(counts - np.ceil(N / K)) > radius) <= delta


def test_radii_are_traceable():
    T = jnp.array([10.0, 100.0])
    np.testing.assert_allclose(
        jax.jit(jax.vmap(lambda T: hoeffding_radius(T, 0.1, 3)))(T),
        [hoeffding_radius(10, 0.1, 3), hoeffding_radius(100, 0.1, 3)],
    )
    assert jax.grad(class_count_radius)(100.0, 0.1) > 0


# ----------------------------------------------------------------------------------- wrong numbers


def clock(t=1.0, rates=unit, vocab_size=10, num_classes=2):
    return sso.decoder_clock(t, rates, vocab_size, num_classes)


def times(rates=unit, vocab_size=10, num_classes=2):
    return sso.transition_times(rates, vocab_size, num_classes)


def bound(t=1.0, rates=unit, vocab_size=10, num_classes=2, c0=1.0):
    return sso.growth_bound(t, rates, vocab_size, num_classes, c0)


def asymptote(t=1.0, rates=unit, vocab_size=10, num_classes=2, c0=1.0):
    return growth_asymptote(t, rates, vocab_size, num_classes, c0)


def discrete(num_visits=3, rates=unit, vocab_size=10):
    return discrete_height(num_visits, rates, vocab_size)


OF_TIME = {
    "t": [
        (-1.0, "must be finite and not negative, held -1.0"),
        ([0.0, np.nan], "must be finite and not negative, held nan"),
        (np.inf, "must be finite and not negative, held inf"),
        ("1", "must be real numbers, was '1'"),
        ([[1.0], 2.0], "must be a rectangular array, was ragged"),
    ]
}
OF_C0 = {
    "c0": [
        (0.0, "must be positive and finite, was 0.0"),
        (-1, "must be positive and finite, was -1"),
        (np.inf, "must be positive and finite, was inf"),
        ([1.0, 2.0], r"must be one number, was of shape \(2,\)"),
        (True, "must be real numbers, was True"),
    ]
}
OF_ALL = {
    "rates": [(1.0, "must be LearningRates, was 1.0")],
    "vocab_size": [
        (1, "must be a finite number of at least [24], was 1"),
        (np.inf, "must be a finite number of at least [24], was inf"),
        ([10, 20], r"must be a finite number of at least [24], was \[10, 20\]"),
    ],
}
OF_CLASSES = {"num_classes": [(0, "must be a finite number of at least 1, was 0")]}
DELTA = {
    "delta": [(x, rf"must lie in \(0, 1\), was {x}") for x in (0, 1, -0.1, 1.5, np.nan)],
}
WRONG = [
    (clock, OF_TIME | OF_ALL | OF_CLASSES),
    (bound, OF_TIME | OF_ALL | OF_CLASSES | OF_C0),
    (asymptote, OF_TIME | OF_ALL | OF_CLASSES | OF_C0),
    (
        times,
        OF_ALL | OF_CLASSES | {"vocab_size": [(3, "must be a finite number of at least 4, was 3")]},
    ),
    (
        discrete,
        OF_ALL
        | {
            "num_visits": [
                (-1, "must be an integer of at least 0, was -1"),
                (2.5, "must be an integer of at least 0, was 2.5"),
            ]
        },
    ),
    (
        lambda context_length=10, delta=0.1, num_tokens=1: hoeffding_radius(
            context_length, delta, num_tokens
        ),
        DELTA
        | {
            "context_length": [(1, "must be a finite number of at least 2, was 1")],
            "num_tokens": [(0, "must be a finite number of at least 1, was 0")],
        },
    ),
    (
        lambda num_windows=10, delta=0.1: class_count_radius(num_windows, delta),
        DELTA | {"num_windows": [(0, "must be a finite number of at least 1, was 0")]},
    ),
]


@pytest.mark.quick
@pytest.mark.parametrize(
    ("function", "name", "value", "message"),
    [
        (function, name, value, message)
        for function, cases in WRONG
        for name, wrong in cases.items()
        for value, message in wrong
    ],
)
def test_wrong_numbers_are_named(function, name, value, message):
    with pytest.raises(ValueError, match=f"^{name} {message}"):
        function(**{name: value})


def test_c0_that_single_precision_loses(single_precision):
    with pytest.raises(ValueError, match="c0 in single precision must be positive and finite"):
        sso.growth_bound(1.0, sso.LearningRates(1.0, 1.0), 10, 2, 1e-60)
