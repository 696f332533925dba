"""The error budget as text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np

from scan_snap_ode.budget import levels as lv

if TYPE_CHECKING:
    from scan_snap_ode.budget.budget import ErrorBudget, Step

_HEADER = ("from", "to, which assumes", "in Z", "shape", "share", "valid", "in c")
_NOTES = (
    "in Z: L2 distance of the attention logits, relative to the level on the left; shape: what is "
    "left of it after the best re-timing (≤: as far as the records reach); share: of the sum of "
    "distances, not relative; in c: mean total variation of the "
    "attention, 0 to 1"
)


def table(budget: ErrorBudget) -> str:
    """Distance, share and assumption of each step, and what else there is to know."""
    if len(budget.runs) < 2:
        return f"ErrorBudget of {', '.join(budget.runs) or 'no level yet'}"
    steps, branches = budget.steps, budget.branches
    shares = ["–" if np.isnan(p[-1]) else f"{p[-1]:.0%}" for p in budget.shares]
    rows = [_row(step, share) for step, share in zip(steps, shares, strict=True)]
    if len(steps) > 1:
        whole = budget.distance(steps[0].above, steps[-1].below)
        rows.append((whole.above, f"{whole.below}, in all", *_row(whole, "")[2:]))
    beside = [_row(step, "") for step in branches]
    widths = [max(len(row[k]) for row in [_HEADER, *rows, *beside]) for k in range(len(_HEADER))]
    lines = [f"Error budget after {budget.ts[-1]:,.0f} steps", _line(_HEADER, widths)]
    lines += [_line(row, widths) for row in rows]
    if beside:
        lines += ["  beside the ladder", *(_line(row, widths) for row in beside)]
    valid = f"valid: from the first record within {budget.tolerance:.0%} in Z to the first beyond"
    notes = [f"{_NOTES}; {valid}", *_notes(budget)]
    notes += [f"left out: {level}. {why}" for level, why in budget.left_out.items()]
    for note in notes:
        lines += textwrap.wrap(note, 98, initial_indent="  ", subsequent_indent="    ")
    return "\n".join(lines)


def _row(step: Step, share: str) -> tuple[str, ...]:
    return (
        step.above,
        f"{step.below}: {step.assumes}",
        _percent(step.logits[-1]),
        ("≤" if step.shape_is_bound[-1] else "") + _percent(step.shape[-1]),
        share,
        _span(step.valid_from, step.valid_until),
        _number(step.attention[-1]),
    )


def _line(row: tuple[str, ...], widths: list[int]) -> str:
    cells = [
        cell.ljust(w) if k < 2 else cell.rjust(w)
        for k, (cell, w) in enumerate(zip(row, widths, strict=True))
    ]
    return ("  " + "  ".join(cells)).rstrip()


def _notes(budget: ErrorBudget) -> list[str]:
    notes = []
    if budget.solver_error:
        worst = max(budget.solver_error, key=lambda v: budget.solver_error[v][-1])
        notes.append(
            f"solver's own error: at most {_percent(budget.solver_error[worst][-1])} of Z ({worst})"
        )
    if lv.SGD in budget.runs and (count := len(budget.logits(lv.SGD))) > 1:
        spread, error = budget.spread(lv.SGD)[-1], budget.standard_error(lv.SGD)[-1]
        note = (
            f"SGD is the mean of {count} seeds: Z of one run strays {spread:.1%} from it, the "
            f"mean's standard error is {error:.1%}"
        )
        if budget.steps and budget.steps[0].above == lv.SGD:
            below = budget.steps[0].below
            bias = budget.bias(below)
            low, high = f"{bias.low[-1]:.1%}", f"{bias.high[-1]:.1%}"
            told = f"is about {bias.value[-1]:.1%}, between {low} and {high}"
            nothing = f"cannot be told from 0, and is at most about {high}"
            note += f"; its bias against {below} {told if bias.low[-1] > 0 else nothing}"
        notes.append(note)
    return notes


def _span(start: float, end: float) -> str:
    if np.isnan(start):
        return "never"
    return f"{start:,.0f} to " + ("the end" if np.isinf(end) else f"{end:,.0f}")


def _percent(value: float) -> str:
    """Small errors keep two figures: what a theory costs may be far below a percent."""
    if not np.isfinite(value):
        return "–"
    return f"{value:.1%}" if value >= 0.001 or value == 0 else f"{100 * value:.0e}%"


def _number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or value >= 0.001 else f"{value:.0e}"
