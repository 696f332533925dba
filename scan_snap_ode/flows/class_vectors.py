"""The class vectors f_i as one dense array, for the flows that need all their inner products."""

from __future__ import annotations

import equinox as eqx
import jax.numpy as jnp
from jax.scipy.linalg import cho_factor, cho_solve
from jaxtyping import Array, Float, Int

from scan_snap_ode import checks
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.overlap import class_gram, rank_deficiency
from scan_snap_ode.theory import attention


class ClassVectors(eqx.Module):
    """F, its Gram matrix G = FFᵀ and the pull of gradients on attention; rows are classes.

    Raises:
        ValueError: where an (N, S) array would be too large.
    """

    probs: Float[Array, "N S"]
    weights: Float[Array, " N"]
    query_row: Int[Array, " N"]
    num_queries: int = eqx.field(static=True)

    def __init__(self, classes: SequenceClasses):
        layout = classes.layout
        shape = classes.num_classes, len(layout.support_tokens)
        checks.dense_size("the class vectors of classes", *shape)
        self.probs = classes.dense(classes.support_probs, layout.columns, shape[1])
        self.weights = classes.weights
        self.query_row = jnp.asarray(layout.query_row)
        self.num_queries = len(layout.query_tokens)

    def at(self, Z: Float[Array, "Q S"]) -> Float[Array, "N S"]:
        """F: row i is f_i under the attention logits Z."""
        return attention.direction(self.probs.astype(Z.dtype), Z[self.query_row])

    def pull(
        self, F: Float[Array, "N S"], g: Float[Array, "N S"], along: Float[Array, " N"]
    ) -> Float[Array, "Q S"]:
        """Σ_{i: mᵢ = m} wᵢ fᵢ ∘ (gᵢ − fᵢ (fᵢ·gᵢ)) of every query (Lemma 1); along = fᵢ·gᵢ."""
        moved = self.weights.astype(F.dtype)[:, None] * F * (g - F * along[:, None])
        return jnp.zeros((self.num_queries, F.shape[1]), F.dtype).at[self.query_row].add(moved)


def solve_gram(F: Float[Array, "N S"], X: Float[Array, "N C"]) -> Float[Array, "N C"]:
    """G⁻¹X; the dual vectors FG⁻¹ are only ever needed in products, and those are narrow."""
    return cho_solve(cho_factor(F @ F.T, lower=True), X)


def check_rank(classes: SequenceClasses, flow: str) -> None:
    """ValueError where known class vectors are linearly dependent, so that G has no inverse."""
    if not checks.is_concrete(classes):
        return
    num_classes, support = classes.num_classes, len(classes.support_tokens)
    if num_classes > support:
        why = f"{num_classes:,} classes hold only {support:,} tokens"
    else:
        why = rank_deficiency(class_gram(classes).astype(classes.support_probs.dtype))
    if why is not None:
        raise ValueError(
            f"classes must have linearly independent class vectors for {flow}, which inverts "
            f"their Gram matrix: {why}. JointFlow and AdiabaticFlow do without; or merge or drop "
            "classes."
        )
