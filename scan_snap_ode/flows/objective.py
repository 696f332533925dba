"""The objective J(Y, Z) = Σ wᵢ log αᵢ[nᵢ] and its gradient (paper, Lemmas 1 and 2).

Y holds the rows of support tokens and the columns of `DecoderColumns`; Z the rows of query tokens
and the columns of support tokens. The gradient with respect to a column of Y that stands for many
equal ones is that of each single one.
"""

from __future__ import annotations

from typing import Protocol

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float

from scan_snap_ode.problem.classes import Layout, SequenceClasses
from scan_snap_ode.theory import attention

Gradient = tuple[Float[Array, "S D"], Float[Array, "Q S"]]

# One chunk of gathered decoder rows, in numbers: bounds the memory of PaddedObjective.
CHUNK = 2**24
# A dense class matrix is kept where it has at most this many numbers.
DENSE = 2**27


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

    def value(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]) -> Float[Array, ""]:
        return self.value_and_gradient(Y, Z)[0]

    def value_and_gradient(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]
    ) -> tuple[Float[Array, ""], Gradient]:
        layout, decoder = self.classes.layout, self.classes.layout.decoder_of_width(Y.shape[1])
        multiplicity = jnp.asarray(decoder.multiplicity, Y.dtype)
        rows = (
            jnp.asarray(layout.columns),
            self.classes.support_probs.astype(Y.dtype),
            self.classes.weights.astype(Y.dtype),
            jnp.asarray(layout.query_row),
            jnp.asarray(decoder.target),
        )
        dense = Y.shape[0] <= 4 * layout.ids.shape[1]

        def chunk(carry, rows):
            J, dY, dZ = carry
            columns, probs, weights, query_row, target = rows
            f = attention.direction(probs, Z[query_row[:, None], columns])
            if dense:
                F = jnp.zeros((len(f), Y.shape[0]), Y.dtype)
                F = F.at[np.arange(len(f))[:, None], columns].add(f)
                scores = F @ Y
            else:
                table = Y[columns]
                scores = jnp.einsum("nl,nld->nd", f, table)
            log_likelihood, residual = attention.log_likelihood_and_residual(
                scores, multiplicity, target
            )
            residual = weights[:, None] * residual
            if dense:
                dY = dY + F.T @ residual
                g = jnp.take_along_axis(residual @ Y.T, columns, axis=1)
            else:
                dY = dY.at[columns].add(f[:, :, None] * residual[:, None, :])
                g = jnp.einsum("nd,nld->nl", residual, table)
            along = jnp.sum(scores * residual, axis=1, keepdims=True)  # f·g
            dZ = dZ.at[query_row[:, None], columns].add(f * (g - f * along))
            return (J + weights @ log_likelihood, dY, dZ), None

        carry = jnp.zeros((), Y.dtype), jnp.zeros_like(Y), jnp.zeros_like(Z)
        J, dY, dZ = _scan_chunks(chunk, carry, rows, _chunk_length(layout, Y.shape[1], dense))
        return J, (dY / multiplicity[None, :], dZ)


def _chunk_length(layout: Layout, width: int, dense: bool) -> int:
    numbers = width if dense else layout.ids.shape[1] * width
    return max(CHUNK // numbers, 1)


def _scan_chunks(body, carry, rows, length: int):
    """Fold `body` over chunks of at most `length` rows; the last, shorter one by itself."""
    num_rows = len(rows[0])
    whole = num_rows // length * length
    if num_rows > length:
        stacked = [x[:whole].reshape(-1, length, *x.shape[1:]) for x in rows]
        carry, _ = lax.scan(body, carry, tuple(stacked))
        rows = tuple(x[whole:] for x in rows)
    return carry if num_rows == whole and num_rows > length else body(carry, rows)[0]


class BlockedObjective(eqx.Module):
    """Dense rows grouped by query. All rows of a query share exp(z), so with x a row's
    probabilities, J and its gradient need only products of the constant x and x² with small
    matrices: no array of the size of the classes is made while integrating."""

    layout: Layout = eqx.field(static=True)
    xT: tuple[Float[Array, "S n"], ...]  # token-major: both products read it row by row
    xT2: tuple[Float[Array, "S n"], ...]
    weights: tuple[Float[Array, " n"], ...]

    def __init__(self, classes: SequenceClasses):
        self.layout = layout = classes.layout
        dense = classes.dense(classes.support_probs, layout.columns, len(layout.support_tokens))
        blocks = [self._rows(m) for m in range(len(layout.query_tokens))]
        self.xT = tuple(jnp.asarray(dense[rows].T) for rows in blocks)
        self.xT2 = tuple(x * x for x in self.xT)
        self.weights = tuple(classes.weights[rows] for rows in blocks)

    def value(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]) -> Float[Array, ""]:
        return sum((self._forward(m, Y, z)[0] for m, z in enumerate(Z)), jnp.zeros((), Y.dtype))

    def value_and_gradient(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]
    ) -> tuple[Float[Array, ""], Gradient]:
        multiplicity = jnp.asarray(self.layout.decoder_of_width(Y.shape[1]).multiplicity, Y.dtype)
        J, dY, dZ = jnp.zeros((), Y.dtype), jnp.zeros_like(Y), []
        for m, z in enumerate(Z):
            value, e, norm, scores, residual = self._forward(m, Y, z)
            pulled = e[:, None] * (self._cast(self.xT[m], Y) @ (residual / norm[:, None]))
            along = jnp.sum(scores * residual, axis=1)  # f·g
            spread = e * e * (self._cast(self.xT2[m], Y) @ (along / norm**2))
            J, dY = J + value, dY + pulled  # pulled = Σ f (e_n − α)ᵀ, spread = Σ f² (f·g)
            dZ.append(jnp.sum(Y * pulled, axis=1) - spread)
        return J, (dY / multiplicity[None, :], jnp.stack(dZ))

    def _forward(self, m: int, Y: Float[Array, "S D"], z: Float[Array, " S"]):
        decoder = self.layout.decoder_of_width(Y.shape[1])
        e = jnp.exp(z - lax.stop_gradient(jnp.max(z)))
        norm = jnp.sqrt((e * e) @ self._cast(self.xT2[m], Y))
        scores = self._cast(self.xT[m], Y).T @ (e[:, None] * Y) / norm[:, None]
        log_likelihood, residual = attention.log_likelihood_and_residual(
            scores,
            jnp.asarray(decoder.multiplicity, Y.dtype),
            jnp.asarray(decoder.target[self._rows(m)]),
        )
        weights = self._cast(self.weights[m], Y)
        return weights @ log_likelihood, e, norm, scores, weights[:, None] * residual

    def _rows(self, m: int) -> np.ndarray:
        return np.flatnonzero(self.layout.query_row == m)

    @staticmethod
    def _cast(x: Array, like: Array) -> Array:
        return x.astype(like.dtype)
