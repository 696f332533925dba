"""The flow of steps that are small but not infinitely small."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from scan_snap_ode.flows import base
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates


class FiniteStep(eqx.Module):
    r"""What gradient descent with finite learning rates follows, to second order in them (backward
    error analysis; Barrett and Dherin 2021): with θ' = V(θ, t) the flow of infinitely small steps,

        θ' = V − ½ (V'V + ∂V/∂t)

    Args:
        flow: a flow of decoder and attention, or `FiniteContext` of one.

    Raises:
        ValueError: for another flow.

    >>> import scan_snap_ode as sso
    >>> flow = sso.FiniteStep(sso.JointFlow(sso.syn_small()))
    >>> run = sso.integrate(flow, sso.LearningRates(1.0, 1.0), [10.0, 100.0])
    >>> run.about["method"]
    'FiniteStep(JointFlow)'
    """

    flow: Any

    def __init__(self, flow: Any):
        base.check_wrapped("FiniteStep", flow, {FiniteStep: "it is corrected already"})
        self.flow = flow

    @property
    def classes(self) -> SequenceClasses:
        return self.flow.classes

    @property
    def starts_with_zero_decoder(self) -> bool:
        return getattr(self.flow, "starts_with_zero_decoder", False)

    @property
    def method(self) -> str:
        return f"FiniteStep({base.method(self.flow)})"

    def __repr__(self) -> str:
        return f"{self.method} of {self.classes!r}"

    def initial(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"], rates: LearningRates) -> Any:
        return self.flow.initial(Y, Z, rates)

    def derivative(self, t: Any, state: Any, rates: LearningRates) -> Any:
        def V(t: Any, state: Any) -> Any:
            return self.flow.derivative(t, state, rates)

        t = jnp.asarray(t, jax.tree.leaves(state)[0].dtype)
        first, push = jax.linearize(V, t, state)  # V itself is computed once
        return jax.tree.map(lambda v, a: v - a / 2, first, push(jnp.ones_like(t), first))

    def readout(self, t: Any, state: Any, rates: LearningRates) -> State:
        return self.flow.readout(t, state, rates)
