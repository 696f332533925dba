"""The objective J(Y, Z) = Σ wᵢ log αᵢ[nᵢ] and its gradient (paper, Lemmas 1 and 2).

Y holds the rows of support tokens and the columns of `DecoderColumns`; Z the rows of query tokens
and the columns of support tokens. The gradient with respect to a column of Y that stands for many
equal ones is that of each single one.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int

from scan_snap_ode import checks
from scan_snap_ode.problem.classes import Layout, SequenceClasses
from scan_snap_ode.theory import attention

Gradient = tuple[Float[Array, "S D"], Float[Array, "Q S"]]

# One chunk of gathered decoder rows, in numbers: bounds the memory of PaddedObjective.
CHUNK = 2**24
# A dense class matrix is kept where it has at most this many numbers.
DENSE = 2**27


@runtime_checkable
class Objective(Protocol):
    """J and its gradient, for one layout of the classes."""

    def value(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]) -> Float[Array, ""]:
        """J(Y, Z), in nats."""
        ...

    def value_and_gradient(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]
    ) -> tuple[Float[Array, ""], Gradient]:
        """J(Y, Z) and (∂J/∂Y, ∂J/∂Z)."""
        ...


def objective(classes: SequenceClasses) -> Objective:
    """The objective of `classes`, in the layout that is cheapest for them.

    Many rows a query over a moderate vocabulary (windows of text): dense blocks, one a query.
    Else: the padded supports.
    """
    layout = classes.layout
    num_rows, num_queries = classes.num_classes, len(layout.query_tokens)
    size = num_rows * len(layout.support_tokens)
    dense_pays = size <= DENSE and size <= 16 * layout.ids.size
    if dense_pays and num_rows >= 16 * num_queries:
        return BlockedObjective(classes)
    return PaddedObjective(classes)


class PaddedObjective(eqx.Module):
    """Works on the (N, L) padded supports, in chunks of classes: memory does not grow with N·M."""

    classes: SequenceClasses
    columns: Int[Array, "N L"]  # leaves, not constants: a compiled program would hold a copy
    query_row: Int[Array, " N"]

    def __init__(self, classes: SequenceClasses):
        self.classes = classes
        self.columns = jnp.asarray(classes.layout.columns)
        self.query_row = jnp.asarray(classes.layout.query_row)

    def value(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]) -> Float[Array, ""]:
        return self.value_and_gradient(Y, Z)[0]

    def value_and_gradient(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]
    ) -> tuple[Float[Array, ""], Gradient]:
        layout, decoder = self.classes.layout, self.classes.layout.decoder_of_width(Y.shape[1])
        multiplicity = jnp.asarray(decoder.multiplicity, Y.dtype)
        rows = (
            self.columns,
            self.classes.support_probs.astype(Y.dtype),
            self.classes.weights.astype(Y.dtype),
            self.query_row,
            jnp.asarray(decoder.target),
        )

        def chunk(carry, rows):
            J, dY, dZ = carry
            columns, probs, weights, query_row, target = rows
            f = attention.direction(probs, attention.logits_at(Z, query_row, columns))
            scores, pull = jax.vjp(lambda f, Y: attention.decode(f, columns, Y), f, Y)
            log_likelihood, residual = attention.log_likelihood_and_residual(
                scores, multiplicity, target
            )
            residual = weights[:, None] * residual
            g, pulled = pull(residual)  # Y (e_n − α) and Σ f (e_n − α)ᵀ
            along = jnp.sum(scores * residual, axis=1, keepdims=True)  # f·g
            dZ = dZ.at[query_row[:, None], columns].add(
                f * (g - f * along), mode="promise_in_bounds"
            )
            return (J + weights @ log_likelihood, dY + pulled, dZ), None

        carry = jnp.zeros((), Y.dtype), jnp.zeros_like(Y), jnp.zeros_like(Z)
        length = max(CHUNK // (layout.ids.shape[1] * Y.shape[1]), 1)
        J, dY, dZ = _scan_chunks(chunk, carry, rows, length)
        return J, (dY / multiplicity[None, :], dZ)


def _scan_chunks(body, carry, rows, length: int):
    """Fold `body` over chunks of at most `length` rows; the last, shorter one by itself."""
    num_rows = len(rows[0])
    whole = num_rows // length * length if num_rows > length else 0
    if whole:
        stacked = [x[:whole].reshape(-1, length, *x.shape[1:]) for x in rows]
        carry, _ = lax.scan(body, carry, tuple(stacked))
    if whole < num_rows:
        carry, _ = body(carry, tuple(x[whole:] for x in rows))
    return carry


class BlockedObjective(eqx.Module):
    """Dense rows sorted by query. All rows of a query share exp(z), so with x a row's
    probabilities, J and its gradient need only products of the constant x and x² with small
    matrices: no array of the size of the classes is made while integrating."""

    layout: Layout = eqx.field(static=True)
    xT: tuple[Float[Array, "S n"], ...]  # one a query; token-major, the order both products read
    xT2: tuple[Float[Array, "S n"], ...]
    weights: Float[Array, " N"]

    def __init__(self, classes: SequenceClasses):
        self.layout = layout = classes.layout
        order, ends = self._order()
        dense = classes.dense(classes.support_probs, layout.columns, len(layout.support_tokens))
        host = np.asarray(dense) if checks.is_concrete(dense) else dense
        self.xT = tuple(jnp.asarray(host[rows].T) for rows in np.split(order, ends))
        self.xT2 = tuple(jnp.asarray(host[rows].T ** 2) for rows in np.split(order, ends))
        self.weights = classes.weights[order]

    def value(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]) -> Float[Array, ""]:
        return self._forward(Y, Z)[0]

    def value_and_gradient(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]
    ) -> tuple[Float[Array, ""], Gradient]:
        J, exp_z, norm, scores, residual = self._forward(Y, Z)
        multiplicity = jnp.asarray(self.layout.decoder_of_width(Y.shape[1]).multiplicity, Y.dtype)
        along = jnp.sum(scores * residual, axis=1)  # f·g
        pulled = exp_z[:, :, None] * self._pull(self.xT, residual / norm[:, None])  # Σ f (e_n − α)ᵀ
        spread = exp_z**2 * self._pull(self.xT2, along / norm**2)  # Σ f² (f·g)
        dY = jnp.sum(pulled, axis=0) / multiplicity[None, :]
        return J, (dY, jnp.sum(Y[None] * pulled, axis=2) - spread)

    def _forward(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]):
        decoder = self.layout.decoder_of_width(Y.shape[1])
        exp_z = jnp.exp(Z - lax.stop_gradient(jnp.max(Z, axis=1, keepdims=True)))
        norm = jnp.sqrt(self._push(self.xT2, exp_z**2))
        scores = self._push(self.xT, exp_z[:, :, None] * Y[None]) / norm[:, None]
        log_likelihood, residual = attention.log_likelihood_and_residual(
            scores,
            jnp.asarray(decoder.multiplicity, Y.dtype),
            jnp.asarray(decoder.target[self._order()[0]]),
        )
        weights = self.weights.astype(Y.dtype)
        return weights @ log_likelihood, exp_z, norm, scores, weights[:, None] * residual

    def _push(self, blocks: tuple[Array, ...], tables: Float[Array, "Q S *D"]) -> Array:
        """Each row's product with its query's table: (N, *D)."""
        pairs = zip(blocks, tables, strict=True)
        return jnp.concatenate([x.T.astype(t.dtype) @ t for x, t in pairs])

    def _pull(self, blocks: tuple[Array, ...], values: Float[Array, " N *D"]) -> Array:
        """The transpose of `_push`: each query's sum over its rows, (Q, S, *D)."""
        pairs = zip(blocks, jnp.split(values, self._order()[1]), strict=True)
        return jnp.stack([x.astype(v.dtype) @ v for x, v in pairs])

    def _order(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows sorted by query, and where each query but the first begins."""
        row = self.layout.query_row
        return np.argsort(row, kind="stable"), np.cumsum(np.bincount(row))[:-1]
