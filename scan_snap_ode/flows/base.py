"""What a flow is."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar, runtime_checkable

import equinox as eqx
from jaxtyping import Array, Float

from scan_snap_ode import checks
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates

S = TypeVar("S")


@runtime_checkable
class Flow(Protocol[S]):
    """An ODE for the training dynamics; an Equinox module, so that it passes through jit and vmap.

    Time is counted in steps of SGD. The state is any pytree of arrays.
    """

    @property
    def classes(self) -> SequenceClasses: ...

    def initial(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"], rates: LearningRates) -> S:
        """The state at which the model holds (Y, Z)."""
        ...

    def derivative(self, t: Any, state: S, rates: LearningRates) -> S:
        """d state / dt."""
        ...

    def readout(self, t: Any, state: S, rates: LearningRates) -> State:
        """(Y, Z) of a state."""
        ...


@runtime_checkable
class GradientFlow(Flow[S], Protocol[S]):
    """A flow whose decoder is learned along with attention, so that it can follow another
    objective: what the wrappers (`HeavyBall`, `FiniteStep`, `FiniteContext`) can wrap."""

    def along(self, state: S, gradient: State, rates: LearningRates) -> S:
        """How the state moves where (∂J/∂Y, ∂J/∂Z) is `gradient`; a column of ∂J/∂Y that stands
        for many equal ones being that of each single one."""
        ...


@runtime_checkable
class IntrinsicFlow(Flow[S], Protocol[S]):
    """A flow that is autonomous in its own time Γ(t; rates): one solve serves all rates."""

    @property
    def has_intrinsic_time(self) -> bool: ...

    def intrinsic_time(self, t: Any, rates: LearningRates) -> Float[Array, "*axes"]:
        """Γ at times t, behind the axes of the rates; 0 at t = 0, rising."""
        ...

    def intrinsic_derivative(self, state: S) -> S:
        """d state / dΓ."""
        ...


class Wrapper(eqx.Module):
    """A flow made of another one, `flow`: with its classes, and its state unless told otherwise."""

    flow: Any

    @property
    def classes(self) -> SequenceClasses:
        return self.flow.classes

    @property
    def method(self) -> str:
        """What a run of this flow is called."""
        raise NotImplementedError

    @property
    def starts_with_zero_decoder(self) -> bool:
        return getattr(self.flow, "starts_with_zero_decoder", False)

    def __repr__(self) -> str:
        return f"{self.method} of {self.classes!r}"

    def initial(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"], rates: LearningRates) -> Any:
        return self.flow.initial(Y, Z, rates)

    def readout(self, t: Any, state: Any, rates: LearningRates) -> State:
        return self.flow.readout(t, state, rates)


def method(flow: Flow) -> str:
    """What a run of `flow` is called."""
    return getattr(flow, "method", type(flow).__name__)


def check_classes(classes: Any) -> SequenceClasses:
    """`classes`, else ValueError."""
    if not isinstance(classes, SequenceClasses):
        raise ValueError(
            f"classes must be SequenceClasses, was {type(classes).__name__}; of windows, "
            "take windows.classes() or windows.as_classes()."
        )
    return classes


def check_wrapped(wrapper: str, flow: Any, refused: dict[type, str]) -> None:
    """ValueError unless `wrapper` can wrap `flow`."""
    for kind, reason in refused.items():
        if isinstance(flow, kind):
            raise ValueError(f"flow must not be {kind.__name__} inside {wrapper}: {reason}.")
    if not isinstance(flow, GradientFlow):
        raise ValueError(
            f"flow must be a flow of decoder and attention (JointFlow, ModifiedJointFlow, "
            f"AdiabaticFlow) inside {wrapper}, was {type(flow).__name__}."
        )


def check_start(flow: Flow, start: State) -> State:
    """(Y, Z), where `flow` can start there; else ValueError, or a compiled check that fails."""
    Y, Z = start
    if not getattr(flow, "starts_with_zero_decoder", False):
        return start
    message = (
        f"init Y0 must be zero for {method(flow)}, whose decoder is made of class vectors; "
        "JointFlow starts anywhere."
    )
    if not checks.is_concrete(Y):
        return Y, eqx.error_if(Z, (Y != 0).any(), message)
    if bool((Y != 0).any()):
        raise ValueError(message)
    return start
