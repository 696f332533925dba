"""The flow of SGD with momentum."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from scan_snap_ode import checks
from scan_snap_ode.flows import base
from scan_snap_ode.flows.finite_step import FiniteStep
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates


class HeavyBall(base.Wrapper):
    r"""What heavy-ball SGD (v ← μv + ∇, θ ← θ + ηv, from rest) follows, with θ' = V(θ) the flow
    without momentum:

        (1+μ)/2 θ'' + (1−μ) θ' = V(θ),   θ'(0) = V(θ₀)/(1+μ)

    The mass and the first velocity are those of the recursion, read by central differences: the
    error is of second order in the rates, where rates η/(1−μ) without mass are of first order and
    poor. The rates are those of SGD, not divided by 1−μ. With μ = 0 it is `flow` itself.

    Args:
        flow: a flow of decoder and attention, or `FiniteContext` of one.
        momentum: μ in [0, 1).

    Raises:
        ValueError: for another flow, or a momentum outside [0, 1).

    >>> import scan_snap_ode as sso
    >>> flow = sso.HeavyBall(sso.JointFlow(sso.syn_small()), momentum=0.9)
    >>> run = sso.integrate(flow, sso.LearningRates(1.0, 1.0), [10.0, 100.0])
    >>> run.about["method"]
    'HeavyBall(JointFlow, momentum=0.9)'
    """

    momentum: Float[Array, ""]
    at_rest: bool = eqx.field(static=True)  # μ = 0: nothing to carry

    def __init__(self, flow: Any, momentum: Any):
        reasons = {
            HeavyBall: "it has momentum already",
            FiniteStep: "the heavy ball has its own terms of that order; wrap the flow itself",
        }
        base.check_wrapped("HeavyBall", flow, reasons)
        checks.within("momentum", momentum, 0, 1)
        self.flow = flow
        self.momentum = jnp.asarray(momentum, flow.classes.support_probs.dtype)
        self.at_rest = checks.is_concrete(momentum) and float(momentum) == 0

    @property
    def method(self) -> str:
        known = checks.is_concrete(self.momentum)
        value = str(np.asarray(self.momentum)) if known else "traced"
        return f"HeavyBall({base.method(self.flow)}, momentum={value})"

    def initial(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"], rates: LearningRates) -> Any:
        start = self.flow.initial(Y, Z, rates)
        if self.at_rest:
            return start
        V = self.flow.derivative(jnp.zeros((), Y.dtype), start, rates)
        return start, jax.tree.map(lambda v: v / (1 + self.momentum), V)

    def derivative(self, t: Any, state: Any, rates: LearningRates) -> Any:
        if self.at_rest:
            return self.flow.derivative(t, state, rates)
        position, velocity = state
        V = self.flow.derivative(t, position, rates)
        mass, friction = (1 + self.momentum) / 2, 1 - self.momentum
        return velocity, jax.tree.map(lambda V, v: (V - friction * v) / mass, V, velocity)

    def readout(self, t: Any, state: Any, rates: LearningRates) -> State:
        return self.flow.readout(t, state if self.at_rest else state[0], rates)
