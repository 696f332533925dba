"""Initial values of Y and Z, in the coordinates that can move.

A token outside every support never moves its row of Y or its column of Z, only query rows of Z
move, and columns of Y that start equal and are never a next token stay equal: so a run keeps the
rows of support tokens, and one column for all tokens that are never next.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from scan_snap_ode import checks
from scan_snap_ode.problem.classes import Layout

State = tuple[Float[Array, "S D"], Float[Array, "Q S"]]


def zeros(layout: Layout, dtype: Any, full: bool = False) -> State:
    """Y = Z = 0; `full` keeps one column of Y per token."""
    width = layout.vocab_size if full else len(layout.decoder.tokens)
    support, queries = len(layout.support_tokens), len(layout.query_tokens)
    # Made on the host: jnp.zeros would compile a program for each shape.
    return jnp.asarray(np.zeros((support, width), dtype)), jnp.asarray(
        np.zeros((queries, support), dtype)
    )


def given(layout: Layout, init: Any, dtype: Any, full: bool = False) -> State:
    """The moving part of (Y0, Z0), both (M, M): Y0[token, next], Z0[query, token].

    Raises:
        ValueError: when `init` is no such pair, or holds a number that is not finite.
    """
    try:
        Y0, Z0 = init
    except (TypeError, ValueError) as error:
        raise ValueError(
            f'init must be "zeros", a Trajectory or a pair (Y0, Z0), was {init!r}.'
        ) from error
    size = layout.vocab_size
    for name, value in (("init Y0", Y0), ("init Z0", Z0)):
        concrete = checks.is_concrete(value)
        array = checks.reals(name, value) if concrete else jnp.asarray(value)
        if array.shape != (size, size):
            raise ValueError(f"{name} must have shape {(size, size)}, was {array.shape}.")
        if concrete and not np.isfinite(array).all():
            raise ValueError(f"{name} must be finite, held {array[~np.isfinite(array)][0]}.")
    Y, Z = jnp.asarray(Y0, dtype), jnp.asarray(Z0, dtype)
    rows = layout.support_tokens
    return _columns(layout, Y[rows], full), Z[layout.query_tokens][:, rows]


def uniform(layout: Layout, key: Array, dtype: Any) -> State:
    """Y and Z drawn uniformly in ±1/sqrt(M), the authors' random start.

    Each token's row is drawn by itself, so that a run's values do not depend on which other tokens
    can move.

    Raises:
        ValueError: when the (S, M) rows would be too large.
    """
    size = layout.vocab_size
    checks.dense_size("init='uniform': Y", len(layout.support_tokens), size)
    bound = 1 / np.sqrt(size)

    def rows(key: Array, tokens: Any) -> Array:
        def row(token: Array) -> Array:
            # In single precision whatever is computed in, so that both start alike.
            own = jax.random.fold_in(key, token)
            return jax.random.uniform(own, (size,), jnp.float32, -bound, bound)

        return jax.vmap(row)(jnp.asarray(tokens)).astype(dtype)

    key_Y, key_Z = jax.random.split(key)
    Z = rows(key_Z, layout.query_tokens)[:, layout.support_tokens]
    return rows(key_Y, layout.support_tokens), Z


def _columns(layout: Layout, Y: Float[Array, "S M"], full: bool) -> Float[Array, "S D"]:
    """Fewest columns of Y that lose nothing; a traced Y keeps all of them."""
    other = np.setdiff1d(np.arange(layout.vocab_size), layout.next_tokens)
    if full or not checks.is_concrete(Y):
        return Y
    host = np.asarray(Y)
    if not (host[:, other] == host[:, other[:1]]).all():
        return Y
    return Y[:, np.concatenate([layout.next_tokens, other[:1]])]
