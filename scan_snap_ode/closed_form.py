"""The paper's last word: attention without an ODE (Theorems 3 and 4)."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from scan_snap_ode import checks
from scan_snap_ode.flows.base import check_classes
from scan_snap_ode.flows.slow_attention import SlowAttentionFlow
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory.growth import growth_bound
from scan_snap_ode.trajectory import Status, Trajectory

# From below, the slowest of Newton's iterations reaches double precision in 20 (tests).
_ITERATIONS = 30


def closed_form(classes: SequenceClasses, rates: LearningRates, ts: Any) -> Trajectory:
    r"""Attention of classes that share one common token, in closed form (paper, Theorems 3 and 4):

        z₀ = −B(t)                                 the common token, C₀⁻¹ = Σᵢ wᵢ fᵢ₀² Σ_{j≠i} fⱼ₀²
        z_l = −½ ln(1 + sᵢ P_l²)                   the distinct tokens of class i

    where sᵢ ≤ 0 is such that they gain what the common token loses to class i (rows of Z sum to
    zero). Assumes slow attention, the modified gradient, and an overlap fᵢ₀fⱼ₀ of the classes far
    below 1/K and far above 1/M: its relative error is about K·overlap + 1/(M·overlap).

    Args:
        classes: equally weighted, one query, one next token a class, one token common to all of
            them and all others distinct to a class.
        rates: learning rates; arrays add leading axes.
        ts: (T,) times in steps, ≥ 0, rising.

    Raises:
        ValueError: naming which of these does not hold.

    >>> import scan_snap_ode as sso
    >>> classes = sso.single_common_token(10, 1000, 0.01, 10)
    >>> run = sso.closed_form(classes, sso.LearningRates(1.0, 1.0), [10.0, 1000.0])
    >>> bool(run.attention_logits[1, 0, 0] < 0 < run.attention_logits[1, 0, 1])
    True
    """
    check_one_common_token(classes)
    checks.kind("rates", rates, LearningRates)
    checks.rising("ts", ts)
    dtype = classes.support_probs.dtype
    rates = jax.tree.map(lambda x: x.astype(dtype), rates)
    ts = jnp.asarray(np.asarray(ts, dtype) if checks.is_concrete(ts) else ts, dtype)
    flow = SlowAttentionFlow(classes)
    Z = _attention_logits(classes, flow, rates, ts)
    return Trajectory(
        classes=classes,
        rates=rates,
        ts=ts,
        attention_logits=Z,
        flow=flow,
        status=jnp.full(rates.shape, Status.SUCCESS),
        stats={},
        about={"method": "closed form"},
    )


def check_one_common_token(classes: Any) -> None:
    """ValueError unless the closed form speaks of such classes."""
    layout = check_classes(classes).layout
    common = classes.common_tokens
    weights = np.asarray(classes.weights) if checks.is_concrete(classes.weights) else np.ones(1)
    holds = {
        "one query token": len(layout.query_tokens) == 1,
        "a next token of its own for each class": len(layout.next_tokens) == classes.num_classes,
        "two classes or more": classes.num_classes > 1,
        "equal weights": np.ptp(weights) <= 1e-6 * weights.max(),
        "one common token": len(common) == 1,
        "a common token that all classes hold": len(common) == 1
        and layout.num_classes_of_token[common[0]] == classes.num_classes,
        "distinct tokens in each class": bool((layout.mask.sum(1) > 1).all()),
    }
    for what, met in holds.items():
        if not met:
            raise ValueError(
                f"classes must have {what} for the closed form, had not "
                f"({len(layout.query_tokens)} query tokens, {classes.num_classes} classes, "
                f"{len(layout.next_tokens)} next tokens, {len(common)} common tokens)."
            )


def _attention_logits(
    classes: SequenceClasses, flow: SlowAttentionFlow, rates: LearningRates, ts: Array
) -> Float[Array, "*axes T 1 S"]:
    layout, M, N = classes.layout, classes.vocab_size, classes.num_classes
    is_common = layout.ids == classes.common_tokens[0]
    P = jnp.where(layout.mask, classes.support_probs, 0)
    f0 = jnp.sum(jnp.where(is_common, P, 0), axis=1) / jnp.linalg.norm(P, axis=1)
    hold = classes.weights * f0**2 * (jnp.sum(f0**2) - f0**2)  # each class's pull on the token
    c0 = 1 / jnp.sum(hold)
    B = growth_bound(ts, rates, M, N, c0)
    own = jnp.where(is_common | ~layout.mask, 0, P)  # of distinct tokens
    behind = (None,) * B.ndim  # the classes' axes stand behind those of rates and times
    gained = _gain(
        B[..., None] * (hold * c0)[behind], (own / jnp.max(own, axis=1, keepdims=True))[behind]
    )
    lost = -B[..., None, None] / N  # N classes add up below
    values = jnp.where(is_common[behind], lost, gained)  # 0 where padded
    row = jnp.zeros((*B.shape, len(layout.support_tokens)), B.dtype)
    return row.at[..., layout.columns].add(values)[..., None, :]


def _gain(
    total: Float[Array, "*axes N"], p: Float[Array, "*#axes N L"]
) -> Float[Array, "*axes N L"]:
    """z_l = −½ ln(1 − (1 − e^{−y}) p_l²) ≥ 0 with Σ_l z_l = `total`, p = P/max P.

    The sum is concave in y = 2 max z: Newton climbs from below.
    """

    def logits(y: Array) -> Array:
        return -jnp.log1p(jnp.expm1(-y)[..., None] * p**2) / 2

    def newton(_: Any, y: Array) -> Array:
        rest = 1 + jnp.expm1(-y)[..., None] * p**2
        slope = jnp.sum(p**2 * jnp.exp(-y)[..., None] / rest, axis=-1) / 2
        return y + (total - jnp.sum(logits(y), axis=-1)) / slope

    return logits(jax.lax.fori_loop(0, _ITERATIONS, newton, jnp.zeros_like(total)))
