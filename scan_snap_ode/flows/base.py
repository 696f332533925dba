"""What a flow is."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Array, Float

from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates

S = TypeVar("S")


@runtime_checkable
class Flow(Protocol[S]):
    """An ODE for the training dynamics; an Equinox module, so that it passes through jit and vmap.

    Time is counted in steps of SGD. The state is any pytree of arrays.
    """

    classes: SequenceClasses

    def initial(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]) -> S:
        """The state at which the model holds (Y, Z)."""
        ...

    def derivative(self, t: Any, state: S, rates: LearningRates) -> S:
        """d state / dt."""
        ...

    def readout(self, state: S) -> State:
        """(Y, Z) of a state."""
        ...
