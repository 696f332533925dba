r"""The decoder's clock: how far it has come when attention is slow (paper, Lemmas 5 to 9).

With s = t/K visits a class and u = M h,

    exp(u) + (M − 1) u = M η_Y s + 1,    dh/ds = η_Y / (M − 1 + exp(u)).
"""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from scan_snap_ode import checks
from scan_snap_ode.rates import LearningRates

# From their starting points, which lie on the side from which each iteration is monotone, the
# slowest of the iterations below reaches double precision in 9 (tests).
_ITERATIONS = 12


class _Numbers(eqx.Module):
    """Prints its numbers, where Equinox prints shapes."""

    def __repr__(self) -> str:
        return eqx.tree_pformat(self, short_arrays=False)


class DecoderClock(_Numbers):
    """The decoder's progress at times t; shape: the axes of the rates, then those of t.

    Attributes:
        h: height of the decoder's logits: Y = F G⁻¹ W, row i of W being h ((M−1) at nᵢ, −1
            elsewhere).
        gamma: γ = (M−1)² h/(M − 1 + e^{Mh}), the speed at which attention is driven.
        Gamma: Γ = η_Z ∫γ dt = η_Z K (M−1)² h²/(2 η_Y), the intrinsic time of slow attention.
    """

    h: Float[Array, "*axes"]
    gamma: Float[Array, "*axes"]
    Gamma: Float[Array, "*axes"]


class TransitionTimes(_Numbers):
    """When attention goes from scanning to snapping, in steps; shape: that of the rates.

    Attributes:
        t0_prime: t₀' = K ln M/η_Y (paper, Lemma 8).
        t0: t₀ = 2(1+δ) K ln M/η_Y.
        delta: δ of Lemma 8, solved: (1+δ) ln M is the larger root of e^u = (M−1) u.
        crossing: when e^{Mh} = (M−1) M h exactly, which t₀ states up to terms of order 1/M.
        peak: the time of γ's maximum, where attention is driven fastest.
        peak_speed: that maximum, ((M−1)/M) W₀((M−1)/e), free of rates and classes.
    """

    t0_prime: Float[Array, "*batch"]
    t0: Float[Array, "*batch"]
    delta: Float[Array, "*batch"]
    crossing: Float[Array, "*batch"]
    peak: Float[Array, "*batch"]
    peak_speed: Float[Array, "*batch"]


def decoder_clock(t: Any, rates: LearningRates, vocab_size: Any, num_classes: Any) -> DecoderClock:
    """h, γ and Γ of K equally frequent classes at times t (paper, Lemmas 5 to 7, Theorem 1).

    Accurate to rounding in either precision, with exact derivatives in every argument.

    Args:
        t: times in steps, ≥ 0, any shape.
        rates: their axes lead those of t.
        vocab_size: M ≥ 2.
        num_classes: K ≥ 1.

    Raises:
        ValueError: for an argument that is not as above.

    >>> import scan_snap_ode as sso
    >>> clock = sso.decoder_clock([10.0, 1000.0], sso.LearningRates(1.0, 1.0), 30, 2)
    >>> [round(float(h), 4) for h in clock.h]
    [0.1249, 0.3199]
    >>> sso.decoder_clock(0.0, sso.LearningRates(1.0, 1.0), 30, 2)
    DecoderClock(
      h=Array(0., dtype=float64),
      gamma=Array(0., dtype=float64),
      Gamma=Array(0., dtype=float64)
    )
    """
    t, eta_Y, eta_Z, M, K = broadcast(t, rates, vocab_size, num_classes)
    u = scaled_height(M * eta_Y * (t / K), M)
    h = u / M
    return DecoderClock(h, drive(u, M), eta_Z * K / eta_Y * ((M - 1) * h) ** 2 / 2)


def transition_times(rates: LearningRates, vocab_size: Any, num_classes: Any) -> TransitionTimes:
    """When γ peaks and attention snaps (paper, Lemma 8 and Theorem 4).

    Args:
        rates: learning rates; only η_Y matters.
        vocab_size: M ≥ 4: with fewer tokens e^u = (M−1) u has no root.
        num_classes: K ≥ 1.

    Raises:
        ValueError: for an argument that is not as above.

    >>> import scan_snap_ode as sso
    >>> times = sso.transition_times(sso.LearningRates(1.0, 1.0), 1000, 10)
    >>> round(float(times.t0)), round(float(times.delta), 4)
    (182, 0.3198)
    """
    checks.at_least("vocab_size", vocab_size, 4)
    _, eta_Y, _, M, K = broadcast(0.0, rates, vocab_size, num_classes)
    a, visits = M - 1, K / eta_Y
    u = _crossing_height(a)
    v = _lambert(a / jnp.e)  # M h − 1 at the peak
    return TransitionTimes(
        t0_prime=visits * jnp.log(M),
        t0=2 * u * visits,
        delta=jnp.broadcast_to(u / jnp.log(M) - 1, eta_Y.shape),
        crossing=visits * (2 * a * u - 1) / M,
        peak=visits * (jnp.expm1(1 + v) + a * (1 + v)) / M,
        peak_speed=jnp.broadcast_to(a / M * v, eta_Y.shape),
    )


def discrete_height(
    num_visits: int, rates: LearningRates, vocab_size: Any
) -> Float[Array, "*batch s"]:
    """h* after 0, 1, …, `num_visits` visits of a class by gradient descent (paper, Lemma 5):
    h*(s) = h*(s−1) + η_Y/(M − 1 + exp(M h*(s−1))).

    Raises:
        ValueError: when `num_visits` is no integer ≥ 0 or `vocab_size` is below 2.
    """
    num_visits = checks.integer("num_visits", num_visits, 0)
    _, eta_Y, _, M, _ = broadcast(0.0, rates, vocab_size, 1)

    def step(h: Array, _: None) -> tuple[Array, Array]:
        h = h + eta_Y / (M - 1 + jnp.exp(M * h))
        return h, h

    start = jnp.zeros_like(eta_Y)
    _, later = lax.scan(step, start, length=num_visits)
    return jnp.moveaxis(jnp.concatenate([start[None], later]), 0, -1)


def drive(u: Float[Array, "*axes"], M: Float[Array, ""]) -> Float[Array, "*axes"]:
    """γ = (M−1)² h/(M − 1 + e^u) at u = M h, without overflow."""
    return (M - 1) * (u / M) * jax.nn.sigmoid(jnp.log(M - 1) - u)


@jax.custom_jvp
@jax.jit
def scaled_height(x: Float[Array, "*axes"], M: Float[Array, ""]) -> Float[Array, "*axes"]:
    """u ≥ 0 with expm1(u) + (M−1) u = x, for x = M η_Y s ≥ 0.

    The left side is convex, and both x/M and log1p(x) lie above its root: Newton falls onto it.
    """
    a = M - 1

    def newton(_: Any, u: Array) -> Array:
        return u - (jnp.expm1(u) + a * u - x) / (jnp.exp(u) + a)

    return lax.fori_loop(0, _ITERATIONS, newton, jnp.minimum(x / M, jnp.log1p(x)))


@scaled_height.defjvp
def _(primals: Any, tangents: Any) -> Any:
    (x, M), (dx, dM) = primals, tangents
    u = scaled_height(x, M)
    return u, (dx - u * dM) / (jnp.exp(u) + M - 1)


@jax.jit
def _crossing_height(a: Float[Array, ""]) -> Float[Array, ""]:
    """The larger root of e^u = a u, a ≥ 3: u − ln u = ln a, convex, from above."""

    def newton(_: Any, u: Array) -> Array:
        return u - (u - jnp.log(u) - jnp.log(a)) / (1 - 1 / u)

    return lax.fori_loop(0, _ITERATIONS, newton, 2 * jnp.log(a) + 1)


@jax.jit
def _lambert(y: Float[Array, ""]) -> Float[Array, ""]:
    """W₀(y), y > 0: v + ln v = ln y, concave, from below."""

    def newton(_: Any, v: Array) -> Array:
        return v - (v + jnp.log(v) - jnp.log(y)) / (1 + 1 / v)

    return lax.fori_loop(0, _ITERATIONS, newton, y / (1 + y))


def broadcast(t: Any, rates: LearningRates, vocab_size: Any, num_classes: Any) -> tuple:
    """Checked: t behind the axes of the rates, and the other numbers of one type."""
    checks.kind("rates", rates, LearningRates)
    checks.at_least("vocab_size", vocab_size, 2)
    checks.at_least("num_classes", num_classes, 1)
    checks.times("t", t)
    dtype = rates.decoder.dtype
    t = jnp.asarray(np.asarray(t, dtype) if checks.is_concrete(t) else t, dtype)
    ahead = [x.reshape(x.shape + (1,) * t.ndim) for x in (rates.decoder, rates.attention)]
    t = t.reshape((1,) * len(rates.shape) + t.shape)
    return t, *ahead, jnp.asarray(vocab_size, dtype), jnp.asarray(num_classes, dtype)
