"""error_budget(): run every level."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scan_snap_ode import checks, measures
from scan_snap_ode.budget import levels as lv
from scan_snap_ode.budget.budget import ErrorBudget
from scan_snap_ode.closed_form import check_one_common_token, closed_form
from scan_snap_ode.integrate import SolveError, integrate
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.streams.windows import Windows
from scan_snap_ode.training.train import train
from scan_snap_ode.trajectory import Interrupted, Trajectory

# How much sharper the tolerances are against which a solve is held.
_SHARPER = 0.1


def error_budget(
    source: SequenceClasses | Windows,
    rates: LearningRates,
    ts: Any,
    *,
    levels: Sequence[str] | None = None,
    num_seeds: int = 5,
    seed: int = 0,
    batch_size: int = 128,
    context_length: int | None = None,
    momentum: float = 0.0,
    tolerance: float = 0.1,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    max_steps: int = 5_000,
    solver_error: bool = True,
    progress: bool = False,
    on_level: Callable[[str, Trajectory], None] | None = None,
) -> ErrorBudget:
    """Train by SGD, then drop one piece of reality after another, down to the closed form.

    Of windows: SGD → gradient descent on all windows → optimizer flow (the window flow with the
    terms of momentum or of finite steps) → window flow (the gradient flow of the same loss) → class
    flow (the long-sequence limit) → modified flow → slow attention → closed form. Of classes, whose
    windows are drawn fresh, the finite-context flow stands in for the window flow. Beside them the
    adiabatic flow tells slow attention from the modified gradient. Levels whose assumptions do not
    hold on the source are left out, by name and with the reason (`.left_out`).

    Args:
        source: windows of a text, or classes.
        rates: scalar rates, per step. Where momentum is no term of its own, flows take η/(1 − μ).
        ts: (T,) rising whole numbers of steps; 0 = before the first.
        levels: which to run, by name; None = all that are usual. At least two.
        num_seeds, seed, batch_size, context_length, momentum: of SGD, as in `train`.
        tolerance: the relative distance of Z up to which a level counts as valid.
        rtol, atol, max_steps: of the flows, as in `integrate`. On real text slow attention may
            come, in finite time, to where class vectors coincide: it then uses up any number.
        solver_error: solve each flow once more, to a tenth of its tolerances, and tell how far
            apart the two are in Z.
        progress: show bars.
        on_level: called with each level's name and Trajectory as it is done.

    Raises:
        ValueError: for an argument that is not as above.
        SolveError: when fewer than two levels could be solved.
        Interrupted: on ctrl-C, with the levels so far.

    >>> import scan_snap_ode as sso
    >>> budget = sso.error_budget(sso.syn_small(), sso.LearningRates(0.1, 0.1), [0, 10, 100],
    ...                           num_seeds=2, levels=["SGD", "class flow", "slow attention"])
    >>> [step.below for step in budget.steps]
    ['class flow', 'slow attention']
    """
    checks.kind("source", source, SequenceClasses, Windows)
    checks.kind("rates", rates, LearningRates)
    if rates.shape:
        raise ValueError(f"rates must be two numbers for a budget, had the shape {rates.shape}.")
    ts = _check_steps(ts)
    asked = _check_levels(levels, lv.LADDERS[type(source)])
    checks.seed("seed", seed, checks.integer("num_seeds", num_seeds, 1))
    checks.integer("batch_size", batch_size, 1)
    checks.within("momentum", momentum, 0, 1)
    checks.positive("tolerance", tolerance, scalar=True)
    checks.positive("rtol", rtol, scalar=True)  # now, not after hours of SGD
    checks.positive("atol", atol, scalar=True)
    max_steps = checks.integer("max_steps", max_steps, 1)
    checks.kind("solver_error", solver_error, bool)
    if context_length is not None:
        checks.integer("context_length", context_length, 2)
    if on_level is not None and not callable(on_level):
        raise ValueError(f"on_level must be a function or None, was {on_level!r}.")
    budget = ErrorBudget(source, momentum, tolerance=float(tolerance))
    # What does not apply is known before anything is run.
    flows = _flows(asked, budget, context_length)
    if isinstance(source, SequenceClasses) and context_length is None:
        context_length = 128
    discrete: dict[str, Any] = {
        "context_length": context_length,
        "momentum": momentum,
        "record_at": ts,
        "progress": progress,
    }

    def run(level: str) -> Trajectory:
        if level == lv.SGD:
            seeds = {"num_seeds": num_seeds, "seed": seed}
            return train(source, rates, int(ts[-1]), batch_size=batch_size, **seeds, **discrete)
        if level == lv.DESCENT:
            return train(source, rates, int(ts[-1]), batch_size=None, **discrete)
        own = rates if level in lv.WITH_MOMENTUM else rates.with_momentum(momentum)
        if level == lv.CLOSED_FORM:
            return closed_form(budget.classes, own, ts)

        def solved(factor: float) -> Trajectory:
            options = {"rtol": rtol * factor, "atol": atol * factor, "max_steps": max_steps}
            return integrate(flows[level], own, ts, progress=progress, **options)

        found = solved(1.0)
        if solver_error:
            exact = solved(_SHARPER).attention_logits
            off = measures.relative_distance(found.attention_logits, exact)
            budget.solver_error[level] = np.asarray(off)
        return found

    failure: SolveError | None = None
    for level in (level for level in asked if level not in budget.left_out):
        began = time.monotonic()
        try:
            budget.runs[level] = run(level)
        except SolveError as error:
            failure, budget.left_out[level] = error, str(error)
            continue
        except KeyboardInterrupt as stopped:
            budget.unfinished = stopped.partial if isinstance(stopped, Interrupted) else None
            raise Interrupted(budget) from None
        budget.seconds[level] = time.monotonic() - began
        if on_level is not None:
            on_level(level, budget.runs[level])
    if len(budget.runs) < 2 and failure is not None:
        raise failure
    return budget


def _flows(asked: list[str], budget: ErrorBudget, context_length: int | None) -> dict[str, Any]:
    """The flows of the levels that have one; what cannot be is left out of the budget."""
    flows = {}
    for level in asked:
        try:
            if level == lv.CLOSED_FORM:
                check_one_common_token(budget.classes)
            elif level not in (lv.SGD, lv.DESCENT):
                flows[level] = lv.flow_of(level, budget.source, context_length, budget.momentum)
        except ValueError as error:
            budget.left_out[level] = str(error)
    if len(asked) - len(budget.left_out) < 2:
        reasons = " ".join(f"{level}: {why}" for level, why in budget.left_out.items())
        raise ValueError(f"levels must leave two or more that apply to the source. {reasons}")
    return flows


def _check_steps(ts: Any) -> NDArray[np.int64]:
    steps = checks.reals("ts", ts)
    whole = steps.ndim == 1 and steps.size and np.isfinite(steps).all()
    if not whole or (steps != np.round(steps)).any():
        raise ValueError(f"ts must be a non-empty list of whole numbers of steps, was {ts!r}.")
    if steps[0] < 0 or (np.diff(steps) <= 0).any() or steps[-1] < 1:
        raise ValueError(
            f"ts must be strictly increasing, from 0 or more to 1 or more, was {ts!r}."
        )
    if steps[-1] > checks.LARGEST:
        raise ValueError(f"ts must be at most {checks.LARGEST} steps, went up to {steps[-1]:g}.")
    return steps.astype(np.int64)


def _check_levels(levels: Sequence[str] | None, ladder: lv.Ladder) -> list[str]:
    known = ladder.levels
    if levels is None:
        return [level for level in known if level not in ladder.optional]
    asked = list(levels) if isinstance(levels, Iterable) else []
    chosen = [level for level in known if level in asked]
    if len(chosen) < 2 or not all(level in known for level in asked):
        raise ValueError(f"levels must be two or more of {known}, was {levels!r}.")
    return chosen
