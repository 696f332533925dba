"""Attention of the one-layer model, class by class (paper, Section 2)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int


def unnormalised(
    probs: Float[Array, "*axes L"], logits: Float[Array, "*axes L"]
) -> Float[Array, "*axes L"]:
    """P(l) exp(z(l)), scaled so that the largest exponential in each row is 1: no overflow."""
    present = jnp.where(probs > 0, logits, -jnp.inf)
    largest = lax.stop_gradient(jnp.max(present, axis=-1, keepdims=True))
    # The bound binds only where probs = 0, and keeps 0·inf out of values and derivatives.
    return probs * jnp.exp(jnp.minimum(logits - largest, 80))


def attention(
    probs: Float[Array, "*axes L"], logits: Float[Array, "*axes L"]
) -> Float[Array, "*axes L"]:
    """c(l) ∝ P(l) exp(z(l)), each row summing to 1 (paper, Section 2).

    Args:
        probs: (N, L) probabilities or counts of the contextual tokens; 0 = absent.
        logits: (N, L) attention logits z of the row's query at those tokens.
    """
    scores = unnormalised(probs, logits)
    return scores / jnp.sum(scores, axis=-1, keepdims=True)


def direction(
    probs: Float[Array, "*axes L"], logits: Float[Array, "*axes L"]
) -> Float[Array, "*axes L"]:
    """f = c/|c|₂, what LayerNorm hands to the decoder (paper, Section 2)."""
    scores = unnormalised(probs, logits)
    return scores / jnp.linalg.norm(scores, axis=-1, keepdims=True)


def logits_at(
    Z: Float[Array, "Q S"], query_row: Int[Array, " N"], columns: Int[Array, "N L"]
) -> Float[Array, "N L"]:
    """Each row's attention logits at the tokens it holds."""
    return Z.at[query_row[:, None], columns].get(mode="promise_in_bounds")


def decode(
    f: Float[Array, "N L"], columns: Int[Array, "N L"], Y: Float[Array, "S D"]
) -> Float[Array, "N D"]:
    """Yᵀf of each row, whose entries stand at `columns` of the rows of Y.

    A dense product where supports fill much of the vocabulary, else gathered rows of Y.
    """
    if Y.shape[0] <= 8 * f.shape[1]:
        rows = np.arange(f.shape[0])[:, None]
        F = jnp.zeros((f.shape[0], Y.shape[0]), f.dtype)
        return F.at[rows, columns].add(f, mode="promise_in_bounds") @ Y
    return jnp.einsum("nl,nld->nd", f, Y.at[columns].get(mode="promise_in_bounds"))


def log_likelihood_and_residual(
    scores: Float[Array, "N D"], multiplicity: Float[Array, " D"], target: Array
) -> tuple[Float[Array, " N"], Float[Array, "N D"]]:
    """log α[n] and e_n − α of a softmax in which column d stands for `multiplicity[d]` tokens.

    A column's residual is summed over the tokens it stands for; that of n is the sum of the others'
    probabilities, as 1 − α[n] would lose all digits once training has nearly ended.
    """
    log_alpha = jax.nn.log_softmax(scores + jnp.log(multiplicity)[None, :], axis=-1)
    log_likelihood = jnp.take_along_axis(log_alpha, target[:, None], axis=1)[:, 0]
    at_target = target[:, None] == jnp.arange(scores.shape[1], dtype=target.dtype)[None, :]
    others = jnp.where(at_target, 0, jnp.exp(log_alpha))
    rest = jnp.sum(others, axis=1, keepdims=True)
    return log_likelihood, jnp.where(at_target, rest, -others)


def entropy(c: Float[Array, "*axes L"]) -> Float[Array, "*axes"]:
    """Entropy in nats over the last axis; 0 log 0 = 0, NaN stays NaN."""
    return -jnp.sum(c * jnp.log(jnp.where(c == 0, 1, c)), axis=-1)
