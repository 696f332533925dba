"""The paper's modified gradient flow (Lemma 3)."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from scan_snap_ode.flows import base
from scan_snap_ode.flows.class_vectors import ClassVectors, check_rank, solve_gram
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory import attention


class ModifiedJointFlow(eqx.Module):
    r"""The joint flow with the dual vectors FG⁻¹ in place of F in the decoder (paper, Lemma 3):

        dY/dt = η_Y Σᵢ wᵢ (FG⁻¹)ᵢ (e_{nᵢ} − αᵢ)ᵀ

    Attention moves as in `JointFlow`. With this change the decoder's logits of one class no longer
    feel the others', which is what makes the slow-attention limit solvable.

    Args:
        classes: what is learned; their class vectors must be linearly independent.

    Raises:
        ValueError: when they are not, naming the classes.

    >>> import scan_snap_ode as sso
    >>> flow = sso.ModifiedJointFlow(sso.syn_small())
    >>> run = sso.integrate(flow, sso.LearningRates(1.0, 0.1), [1.0, 10.0])
    >>> run.attention_logits.shape
    (2, 2, 30)
    """

    classes: SequenceClasses
    vectors: ClassVectors

    def __init__(self, classes: SequenceClasses):
        self.classes = base.check_classes(classes)
        check_rank(classes, "ModifiedJointFlow")
        self.vectors = ClassVectors(classes)

    def __repr__(self) -> str:
        return f"ModifiedJointFlow of {self.classes!r}"

    def initial(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"], rates: LearningRates
    ) -> State:
        return Y, Z

    def derivative(self, t: Any, state: State, rates: LearningRates) -> State:
        Y, Z = state
        decoder = self.classes.layout.decoder_of_width(Y.shape[1])
        multiplicity = jnp.asarray(decoder.multiplicity, Y.dtype)
        F = self.vectors.at(Z)
        scores = F @ Y
        _, residual = attention.log_likelihood_and_residual(
            scores, multiplicity, jnp.asarray(decoder.target)
        )
        weighted = self.vectors.weights.astype(Y.dtype)[:, None] * residual
        dY = F.T @ solve_gram(F, weighted) / multiplicity[None, :]
        dZ = self.vectors.pull(F, residual @ Y.T, jnp.sum(scores * residual, axis=1))
        return rates.decoder * dY, rates.attention * dZ

    def along(self, state: State, gradient: State, rates: LearningRates) -> State:
        """∂J/∂Y = F R becomes FG⁻¹R = (FG⁻²Fᵀ) ∂J/∂Y."""
        dY, dZ = gradient
        F = self.vectors.at(state[1])
        R = solve_gram(F, F @ dY)
        return rates.decoder * (F.T @ solve_gram(F, R)), rates.attention * dZ

    def readout(self, t: Any, state: State, rates: LearningRates) -> State:
        return state
