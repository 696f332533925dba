"""The one-layer model in its pairwise parameters (Y, Z), and its loss on a batch of windows."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from scan_snap_ode.problem.classes import DecoderColumns
from scan_snap_ode.problem.initial import State
from scan_snap_ode.theory import attention


class Batch(NamedTuple):
    """B windows: their distinct tokens as columns of Z, the counts (up to a factor) of each, the
    row of Z of their query, and the class whose next token is theirs."""

    columns: Int[Array, "B L"]
    counts: Float[Array, "B L"]
    query_row: Int[Array, " B"]
    of_class: Int[Array, " B"]


def batch_loss(
    Y: Float[Array, "S D"], Z: Float[Array, "Q S"], batch: Batch, decoder: DecoderColumns
) -> Float[Array, ""]:
    """Mean cross-entropy of a batch, in nats: −log softmax(Yᵀf)[next], f = c/|c|₂.

    Written without the gradient formulas of the flows, and differentiated by JAX: the two check
    each other.
    """
    logits = attention.logits_at(Z, batch.query_row, batch.columns)
    f = attention.direction(batch.counts, logits)
    scores = attention.decode(f, batch.columns, Y)
    target = jnp.asarray(decoder.target)[batch.of_class]
    log_likelihood, _ = attention.log_likelihood_and_residual(
        scores, jnp.asarray(decoder.multiplicity, Y.dtype), target
    )
    return -jnp.mean(log_likelihood)


def loss_and_gradient(
    state: State, batch: Batch, decoder: DecoderColumns
) -> tuple[Float[Array, ""], State]:
    """The loss and its gradient; with respect to a column of Y that stands for many equal ones,
    that of each single one."""
    loss, (dY, dZ) = jax.value_and_grad(lambda s: batch_loss(s[0], s[1], batch, decoder))(state)
    return loss, (dY / jnp.asarray(decoder.multiplicity, dY.dtype)[None, :], dZ)
