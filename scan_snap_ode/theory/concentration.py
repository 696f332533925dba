"""How far counts in windows stray from their probabilities (paper, Lemmas 10 and 18)."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float

from scan_snap_ode import checks


def hoeffding_radius(context_length: Any, delta: Any, num_tokens: Any = 1) -> Float[Array, ""]:
    """√(ln(2S/δ)/(2(T−1))): how far a token's share of a window strays from its probability.

    With probability ≥ 1 − δ, |count(l)/(T−1) − P(l)| is at most this, for S given tokens at once
    (paper, Lemma 10). It speaks of contextual tokens drawn independently of each other: of the
    synthetic problems' windows, not of those of a text.

    Args:
        context_length: T ≥ 2, the query counted.
        delta: δ in (0, 1), the probability of straying farther.
        num_tokens: S ≥ 1.

    Raises:
        ValueError: for an argument that is not as above.

    >>> round(float(hoeffding_radius(128, 0.05)), 4)
    0.1205
    """
    checks.at_least("context_length", context_length, 2)
    checks.within("delta", delta, 0, 1, open_low=True)
    checks.at_least("num_tokens", num_tokens, 1)
    T, delta, S = (jnp.asarray(x, float) for x in (context_length, delta, num_tokens))
    return jnp.sqrt(jnp.log(2 * S / delta) / (2 * (T - 1)))


def class_count_radius(num_windows: Any, delta: Any) -> Float[Array, ""]:
    """√(N ln(2/δ)/2) + 1: how far the number of windows of a class strays from ⌈N/K⌉.

    With probability ≥ 1 − δ, |Nₙ − ⌈N/K⌉| is at most this for one of K equally frequent classes,
    however many (paper, Lemma 18), when the N windows are drawn independently of each other.

    Args:
        num_windows: N ≥ 1.
        delta: δ in (0, 1), the probability of straying farther.

    Raises:
        ValueError: for an argument that is not as above.

    >>> round(float(class_count_radius(12_800, 0.05)), 1)
    154.7
    """
    checks.at_least("num_windows", num_windows, 1)
    checks.within("delta", delta, 0, 1, open_low=True)
    N, delta = (jnp.asarray(x, float) for x in (num_windows, delta))
    return jnp.sqrt(N * jnp.log(2 / delta) / 2) + 1
