"""The joint gradient flow of decoder and attention (paper, Lemmas 1 and 2)."""

from __future__ import annotations

from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from scan_snap_ode.flows import base
from scan_snap_ode.flows.objective import Objective, objective
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates


class JointFlow(eqx.Module):
    r"""Gradient flow of J(Y, Z) = Σ wᵢ log αᵢ[nᵢ] (paper, Lemmas 1 and 2):

        dY/dt   = η_Y Σᵢ wᵢ fᵢ (e_{nᵢ} − αᵢ)ᵀ
        dz_m/dt = η_Z Σ_{i: mᵢ = m} wᵢ fᵢ ∘ (gᵢ − fᵢ (fᵢ·gᵢ)),   gᵢ = Y (e_{nᵢ} − αᵢ)

    On `windows.classes()` it assumes long sequences; on `windows.as_classes()`, where every
    observed window is a class, it is the **window flow**, the flow of the full-batch loss itself.
    Integrated in reduced coordinates: the cost does not depend on M.

    Args:
        classes: what is learned.

    >>> import scan_snap_ode as sso
    >>> flow = sso.JointFlow(sso.syn_small())
    >>> run = sso.integrate(flow, sso.LearningRates(1.0, 1.0), [1.0, 10.0])
    >>> run.entropy.shape
    (2, 2)
    """

    classes: SequenceClasses
    objective: Objective

    def __init__(self, classes: SequenceClasses):
        self.classes = base.check_classes(classes)
        self.objective = objective(classes)

    def __repr__(self) -> str:
        return f"JointFlow of {self.classes!r}"

    def initial(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"], rates: LearningRates
    ) -> State:
        return Y, Z

    def derivative(self, t: Any, state: State, rates: LearningRates) -> State:
        _, gradient = self.objective.value_and_gradient(*state)
        return self.along(state, gradient, rates)

    def along(self, state: State, gradient: State, rates: LearningRates) -> State:
        dY, dZ = gradient
        return rates.decoder * dY, rates.attention * dZ

    def readout(self, t: Any, state: State, rates: LearningRates) -> State:
        return state
