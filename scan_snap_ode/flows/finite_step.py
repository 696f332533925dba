"""The flow of steps that are small but not infinitely small."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from scan_snap_ode.flows import base
from scan_snap_ode.rates import LearningRates


class FiniteStep(base.Wrapper):
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

    def __init__(self, flow: Any):
        base.check_wrapped("FiniteStep", flow, {FiniteStep: "it is corrected already"})
        self.flow = flow

    @property
    def method(self) -> str:
        return f"FiniteStep({base.method(self.flow)})"

    def derivative(self, t: Any, state: Any, rates: LearningRates) -> Any:
        def V(t: Any, state: Any) -> Any:
            return self.flow.derivative(t, state, rates)

        t = jnp.asarray(t, jax.tree.leaves(state)[0].dtype)
        first, push = jax.linearize(V, t, state)  # V itself is computed once
        return jax.tree.map(lambda v, a: v - a / 2, first, push(jnp.ones_like(t), first))
