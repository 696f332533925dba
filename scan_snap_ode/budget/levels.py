"""The levels of description, what each assumes on top of the one before, and its flow."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass
from typing import Any

from scan_snap_ode.flows.adiabatic import AdiabaticFlow
from scan_snap_ode.flows.finite_context import FiniteContext
from scan_snap_ode.flows.finite_step import FiniteStep
from scan_snap_ode.flows.heavy_ball import HeavyBall
from scan_snap_ode.flows.joint import JointFlow
from scan_snap_ode.flows.modified import ModifiedJointFlow
from scan_snap_ode.flows.slow_attention import SlowAttentionFlow
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.streams.windows import Windows

SGD, DESCENT, OPTIMIZER_FLOW = "SGD", "gradient descent", "optimizer flow"
WINDOW_FLOW, CONTEXT_FLOW, CLASS_FLOW = "window flow", "finite-context flow", "class flow"
ADIABATIC, MODIFIED, SLOW = "adiabatic flow", "modified flow", "slow attention"
CLOSED_FORM = "closed form"

# Which take momentum as it is; the others, as rates η/(1 − μ).
WITH_MOMENTUM = (SGD, DESCENT, OPTIMIZER_FLOW)

_LARGE_STEPS, _SMALL_STEPS = "steps to second order", "infinitely small steps"
_SHORT, _LONG = "windows to first order in 1/T", "infinitely long windows"
_SLOW, _MODIFIED = "slow attention", "the modified gradient"
_STRONGER = {_LARGE_STEPS: _SMALL_STEPS, _SHORT: _LONG}
_THEORY = {
    CLASS_FLOW: _LONG,
    MODIFIED: _MODIFIED,
    SLOW: _SLOW,
    CLOSED_FORM: "one common token, 1/M ≪ overlap ≪ 1/K",
}


@dataclass(frozen=True)
class Ladder:
    """The levels of a kind of source, from training down to theory.

    Attributes:
        main: each level of the ladder with what it assumes on top of the one before.
        branches: what else is known of pairs of levels: (above, below, what below assumes on top).
        optional: levels that run only when asked for.
    """

    main: dict[str, str]
    branches: tuple[tuple[str, str, str], ...]
    optional: tuple[str, ...] = ()

    @property
    def levels(self) -> list[str]:
        """All of them; those of branches stand behind the level that they branch from."""
        order = list(self.main)
        for above, below, _ in self.branches:
            if below not in order:
                order.insert(order.index(above) + 1, below)
        return order

    def assumes(self, above: str, below: str) -> list[str]:
        """What `below` assumes on top of `above`; [] where they are not comparable."""
        edges = [(a, b, self.main[b]) for a, b in itertools.pairwise(self.main)]
        ways: deque[tuple[str, list[str]]] = deque([(above, [])])
        while ways:
            level, dropped = ways.popleft()
            if level == below:
                return [what for what in dropped if _STRONGER.get(what) not in dropped]
            onward = (edge for edge in (*edges, *self.branches) if edge[0] == level)
            ways.extend((b, [*dropped, *what.split(", ")]) for _, b, what in onward)
        return []


_SIDE = ((CLASS_FLOW, ADIABATIC, _SLOW), (ADIABATIC, SLOW, _MODIFIED))

LADDERS = {
    Windows: Ladder(
        main={
            SGD: "",
            DESCENT: "no sampling noise",
            OPTIMIZER_FLOW: _LARGE_STEPS,
            WINDOW_FLOW: _SMALL_STEPS,
            **_THEORY,
        },
        branches=(
            (WINDOW_FLOW, CONTEXT_FLOW, "windows seen by their mean and covariance"),
            (CONTEXT_FLOW, CLASS_FLOW, _LONG),
            *_SIDE,
        ),
        optional=(CONTEXT_FLOW,),
    ),
    SequenceClasses: Ladder(
        main={
            SGD: "",
            DESCENT: f"no sampling noise, {_SHORT}",
            OPTIMIZER_FLOW: _LARGE_STEPS,
            CONTEXT_FLOW: _SMALL_STEPS,
            **_THEORY,
        },
        branches=_SIDE,
    ),
}


def flow_of(
    level: str, source: SequenceClasses | Windows, context_length: int | None, momentum: float
) -> Any:
    """The flow of a level that has one.

    Raises:
        ValueError: where its assumptions do not hold on the source.
    """
    of_text = isinstance(source, Windows)
    classes = source.classes() if of_text else source
    simple = {
        CLASS_FLOW: JointFlow,
        ADIABATIC: AdiabaticFlow,
        MODIFIED: ModifiedJointFlow,
        SLOW: SlowAttentionFlow,
    }
    if level in simple:
        return simple[level](classes)
    if level == CONTEXT_FLOW and of_text:
        return FiniteContext(JointFlow(classes), windows=source)
    if of_text:
        nearest: Any = JointFlow(source.as_classes())
    else:
        nearest = FiniteContext(JointFlow(classes), context_length or 128)
    if level != OPTIMIZER_FLOW:
        return nearest
    return HeavyBall(nearest, momentum) if momentum else FiniteStep(nearest)
