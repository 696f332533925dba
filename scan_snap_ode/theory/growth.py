"""How far attention grows (paper, Theorems 2 to 4)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from scan_snap_ode import checks
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory import decoder_clock as clock


def growth_bound(
    t: Any, rates: LearningRates, vocab_size: Any, num_classes: Any, c0: Any
) -> Float[Array, "*axes"]:
    r"""B(t) = ¼ ln(1 + 4 Γ(t)/C₀), which bounds how far attention has moved (paper, Theorem 4).

    The logit of a common token alone under its query is z = −B. Each of K equal classes gains what
    it loses to it, B/K; so by Theorem 3 a class's dominant distinct token grows by a factor between
    about exp(2 f² B/K) and exp(2 B/K) (`scan_snap_ode.theory.growth.growth_factor_bounds`). The
    paper prints ¼ ln(C₀ + 4Γ), which is not 0 at t = 0 unless C₀ = 1.

    Args:
        t: times in steps, ≥ 0, any shape.
        rates: their axes lead those of t.
        vocab_size: M ≥ 2.
        num_classes: K ≥ 1.
        c0: C₀ > 0, how strongly the common token holds on: 1/((K−1) f₀⁴) for equal classes, f₀
            being the common token's entry of their class vectors, P(common)/|Pᵢ|₂. (The paper's
            ρ₀⁴/(K−1) has scores scaled so that the common token's is 1.)

    Returns:
        B in nats, the axes of the rates, then those of t.

    Raises:
        ValueError: for an argument that is not as above.

    >>> import scan_snap_ode as sso
    >>> B = sso.growth_bound([0.0, 100.0, 1e4], sso.LearningRates(1.0, 0.5), 1000, 10, c0=1.0)
    >>> [round(float(x), 4) for x in B]
    [0.0, 1.5982, 1.8877]
    """
    Gamma = clock.decoder_clock(t, rates, vocab_size, num_classes).Gamma
    return jnp.log1p(4 * Gamma / _c0(c0, Gamma.dtype)) / 4


def growth_asymptote(
    t: Any, rates: LearningRates, vocab_size: Any, num_classes: Any, c0: Any
) -> Float[Array, "*axes"]:
    """What B tends to: ½ ln ln(M η_Y t/K) + ¼ ln(2 η_Z K (M−1)²/(M² η_Y C₀)).

    Attention then moves as ln ln t: it has snapped (paper, Theorem 4). Valid once both
    M η_Y t/K ≫ M ln M, that is t ≫ t₀, and 4Γ ≫ C₀; B then exceeds it by about
    C₀/(16 Γ) − (M−1)/(2 M η_Y t/K).

    Args:
        t: times in steps, ≥ 0, any shape.
        rates: their axes lead those of t.
        vocab_size: M ≥ 2.
        num_classes: K ≥ 1.
        c0: C₀ > 0.

    Returns:
        In nats, the axes of the rates, then those of t; NaN where M η_Y t/K < 1.

    Raises:
        ValueError: for an argument that is not as above.

    >>> import scan_snap_ode as sso
    >>> setting = [1e3, 1e5, 1e7], sso.LearningRates(1.0, 0.5), 1000, 10, 0.01
    >>> error = growth_asymptote(*setting) - sso.growth_bound(*setting)
    >>> [f"{float(e):.0e}" for e in error]
    ['5e-03', '5e-05', '-8e-08']
    """
    t, eta_Y, eta_Z, M, K = clock.broadcast(t, rates, vocab_size, num_classes)
    x = M * eta_Y * (t / K)
    lasting = 2 * eta_Z / eta_Y * K * ((M - 1) / M) ** 2 / _c0(c0, x.dtype)
    return jnp.log(jnp.log(x)) / 2 + jnp.log(lasting) / 4


def growth_factor(z: Float[Array, "*axes"], z0: Float[Array, "*axes"]) -> Float[Array, "*axes"]:
    """χ = exp(2 (z(t) − z(0))): a token's gain over all others of its class (paper, Theorem 3).

    >>> import jax.numpy as jnp
    >>> float(growth_factor(jnp.log(jnp.array(6.0)), jnp.log(jnp.array(2.0))).round(6))
    9.0
    """
    return jnp.exp(2 * (z - z0))


def relative_gain(
    f: Float[Array, "*axes L"], dominant: Int[Array, "*axes"]
) -> Float[Array, "*axes L"]:
    """r_{l₀/l} = f_l₀²/f_l² − 1 of the token at index l₀ = `dominant` over each token l.

    Between distinct tokens of a class slow attention and the adiabatic flow obey
    r(t) = r(0) χ_l₀(t) exactly (paper, Theorem 3; `growth_factor`); joint training does not.

    Args:
        f: attention of each class, of any scale (f, c or P eᶻ), > 0; where it is 0, the gain
            over a token that is not there is inf.
        dominant: index of l₀ along the last axis.

    >>> import jax.numpy as jnp
    >>> relative_gain(jnp.array([2.0, 4.0]), jnp.array(1)).tolist()
    [3.0, 0.0]
    """
    return (jnp.take_along_axis(f, dominant[..., None], axis=-1) / f) ** 2 - 1


def growth_factor_bounds(
    f0: Float[Array, "*axes"], B: Float[Array, "*axes"]
) -> tuple[Float[Array, "*axes"], Float[Array, "*axes"]]:
    """exp(2 f₀² B) ≤ χ ≤ exp(2 B) of a class's dominant distinct token (paper, Theorem 3).

    Holds in slow attention while the class gains (ξ > 0) and its common tokens lose.

    Args:
        f0: f of the dominant token at t = 0.
        B: η_Z wᵢ ∫ξᵢ dt of its class; for K equal classes about `growth_bound`/K.

    >>> import jax.numpy as jnp
    >>> low, high = growth_factor_bounds(jnp.array(0.5), jnp.array(2.0))
    >>> round(float(jnp.log(low)), 6), round(float(jnp.log(high)), 6)
    (1.0, 4.0)
    """
    return jnp.exp(2 * f0**2 * B), jnp.exp(2 * B)


def invariant(
    probs: Float[Array, "*#axes N L"], logits: Float[Array, "*axes N L"]
) -> Float[Array, "*axes N L"]:
    """P_l² (c̃_l⁻² − c̃_l₀⁻²), c̃ = P eᶻ, which slow attention and the adiabatic flow conserve.

    Equivalent to r(t) = r(0) χ(t) (paper, Theorem 3), for any weights of the classes, and for
    tokens that move under one class alone: give a common token the probability 0, which leaves it
    out. l₀ is the class's token of largest probability.

    The factor P_l² makes the value e^{−2 z_l} − (P_l/P_l₀)² e^{−2 z_l₀}, from zero logits
    1 − (P_l/P_l₀)² in [0, 1), whatever the scale of probs: an absolute drift is then one relative
    to c̃_l⁻² at the start.

    Args:
        probs: (N, L) probabilities, 0 = absent; leading axes as those of the logits, or none.
        logits: (N, L) attention logits z of the class's query at those tokens, unshifted.

    Returns:
        (N, L) of the conserved quantity, 0 where probs = 0.

    >>> import jax.numpy as jnp
    >>> probs, z = jnp.array([[0.8, 0.2, 0.0]]), jnp.zeros((1, 3))
    >>> invariant(probs, z).round(4).tolist()
    [[0.0, 0.9375, 0.0]]
    """
    probs = jnp.broadcast_to(probs, logits.shape)
    present = probs > 0
    largest = jnp.argmax(probs, axis=-1, keepdims=True)
    z = jnp.where(present, logits, 0)
    score = jnp.log(jnp.where(present, probs, 1)) + z
    lag = score - jnp.take_along_axis(score, largest, axis=-1)
    ratio_squared_less_1 = jnp.expm1(2 * lag)
    return jnp.where(present, jnp.exp(-2 * z) * (0 - ratio_squared_less_1), 0)


def _c0(value: Any, dtype: Any) -> Float[Array, ""]:
    """C₀ in the type of the computation, checked there too."""
    checks.positive("c0", value, scalar=True)
    if checks.is_concrete(value):
        with np.errstate(over="ignore", under="ignore"):
            value = np.asarray(value, dtype)
        checks.positive("c0 in single precision", value)
    return jnp.asarray(value, dtype)
