"""The joint flow with slow attention: the decoder follows the class vectors at once."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from scan_snap_ode.flows import base
from scan_snap_ode.flows.class_vectors import ClassVectors, solve_gram
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory import attention

AdiabaticState = tuple[Float[Array, "N D"], Float[Array, "Q S"]]


class AdiabaticFlow(eqx.Module):
    r"""Slow attention with the true gradient: Y = F A follows the class vectors at once, and

        dAᵢ/dt = η_Y wᵢ (e_{nᵢ} − αᵢ),   αᵢ = softmax((G A)ᵢ),   gᵢ = F A (e_{nᵢ} − αᵢ)

    Beside `SlowAttentionFlow` it tells what the modified gradient costs; beside `JointFlow`, what
    slow attention costs. It starts from Y = 0.

    Args:
        classes: what is learned; their class vectors may be dependent.

    >>> import scan_snap_ode as sso
    >>> flow = sso.AdiabaticFlow(sso.syn_small())
    >>> run = sso.integrate(flow, sso.LearningRates(1.0, 0.1), [1.0, 10.0])
    >>> run.decoder.shape
    (2, 30, 3)
    """

    classes: SequenceClasses
    vectors: ClassVectors
    starts_with_zero_decoder = True

    def __init__(self, classes: SequenceClasses):
        self.classes = base.check_classes(classes)
        self.vectors = ClassVectors(classes)

    def __repr__(self) -> str:
        return f"AdiabaticFlow of {self.classes!r}"

    def initial(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"], rates: LearningRates
    ) -> AdiabaticState:
        return jnp.zeros((self.classes.num_classes, Y.shape[1]), Y.dtype), Z

    def derivative(self, t: Any, state: AdiabaticState, rates: LearningRates) -> AdiabaticState:
        A, Z = state
        decoder = self.classes.layout.decoder_of_width(A.shape[1])
        multiplicity = jnp.asarray(decoder.multiplicity, A.dtype)
        F = self.vectors.at(Z)
        scores = F @ (F.T @ A)
        _, residual = attention.log_likelihood_and_residual(
            scores, multiplicity, jnp.asarray(decoder.target)
        )
        dA = self.vectors.weights.astype(A.dtype)[:, None] * residual / multiplicity[None, :]
        g = (residual @ A.T) @ F
        dZ = self.vectors.pull(F, g, jnp.sum(scores * residual, axis=1))
        return rates.decoder * dA, rates.attention * dZ

    def along(self, state: AdiabaticState, gradient: State, rates: LearningRates) -> AdiabaticState:
        """∂J/∂Y = F R moves A by R = G⁻¹Fᵀ ∂J/∂Y."""
        dY, dZ = gradient
        F = self.vectors.at(state[1])
        return rates.decoder * solve_gram(F, F @ dY), rates.attention * dZ

    def readout(self, t: Any, state: AdiabaticState, rates: LearningRates) -> State:
        A, Z = state
        return self.vectors.at(Z).T @ A, Z
