"""How far apart two runs are."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@jax.jit
def total_variation(
    c: Float[Array, "*axes N L"], other: Float[Array, "*axes N L"], weights: Float[Array, " N"]
) -> Float[Array, "*axes"]:
    """Mean over classes, by weight, of ½ Σ_l |c_i(l) − c'_i(l)|: 0 = equal, 1 = disjoint."""
    return jnp.sum(jnp.abs(c - other), axis=-1) @ weights / 2


@jax.jit
def relative_distance(
    Z: Float[Array, "*axes Q S"], reference: Float[Array, "*axes Q S"]
) -> Float[Array, "*axes"]:
    """|Z − Z_ref| / |Z_ref| in L2 over all entries; 0 where the two agree exactly, NaN where the
    reference alone is zero."""
    gap = jnp.linalg.norm(Z - reference, axis=(-2, -1))
    size = jnp.linalg.norm(reference, axis=(-2, -1))
    ratio = gap / jnp.where(size == 0, jnp.nan, size)
    return jnp.where(gap == 0, 0, ratio)
