"""The error budget on one sheet."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from numpy.typing import NDArray

from scan_snap_ode.budget import ErrorBudget, Step
from scan_snap_ode.budget import levels as lv
from scan_snap_ode.figures import style
from scan_snap_ode.problem.classes import SequenceClasses


class _Look(NamedTuple):
    colour: str
    marker: str
    line: str
    width: float


LOOKS = {
    lv.SGD: _Look(style.BLACK, "o", "-", 4.5),
    lv.DESCENT: _Look(style.ORANGE, "s", "-", 2.0),
    lv.OPTIMIZER_FLOW: _Look(style.GREEN, "P", ":", 3.0),
    lv.WINDOW_FLOW: _Look(style.SKY, "D", "--", 2.0),
    lv.CONTEXT_FLOW: _Look(style.SKY, "v", "--", 2.0),
    lv.CLASS_FLOW: _Look(style.VERMILION, "^", "-", 2.0),
    lv.ADIABATIC: _Look(style.VERMILION, "<", ":", 2.0),
    lv.MODIFIED: _Look(style.PURPLE, ">", "-", 2.0),
    lv.SLOW: _Look(style.BLUE, "X", "-", 2.0),
    lv.CLOSED_FORM: _Look(style.GREY, "*", "--", 2.5),
}
# Drawn token by token; the others lie beside these, or far off them all.
_IN_DETAIL = (lv.SGD, lv.DESCENT, lv.WINDOW_FLOW, lv.CONTEXT_FLOW, lv.CLASS_FLOW, lv.SLOW)


def plot_budget(budget: ErrorBudget, num_classes: int = 3, num_tokens: int = 9) -> Figure:
    """Attention of the classes that moved most, entropy and loss over time, and the budget."""
    figure = style.sheet(14, 11)
    upper, lower = np.asarray(figure.subfigures(2, 1, height_ratios=[1, 1.1]))
    shown = _moved_most(budget, num_classes)
    for k, (axes, i) in enumerate(
        zip(upper.subplots(1, len(shown), squeeze=False)[0], shown, strict=True)
    ):
        _plot_attention(axes, budget, int(i), num_tokens, legend=k == 0)
    title = f"Where the query looks after {budget.ts[-1]:,.0f} steps on {_source(budget)}"
    upper.suptitle(title, x=0.01, ha="left", fontsize=14, fontweight="bold")
    entropy, loss, bars = lower.subplots(1, 3, width_ratios=[1, 1, 1.6])
    _plot_over_time(entropy, budget, "entropy")
    entropy.legend(fontsize=8.5, framealpha=0.95)
    style.tidy(entropy, "Attention entropy")
    entropy.set_ylabel("entropy of $c$, class mean [nats]", fontsize=11)
    _plot_over_time(loss, budget, "loss")
    style.tidy(loss, "Loss")
    loss.set_ylabel("mean loss on the whole source [nats]", fontsize=11)
    _plot_bars(bars, budget)
    return figure


def _plot_attention(axes: Axes, budget: ErrorBudget, i: int, num_tokens: int, legend: bool) -> None:
    classes = budget.classes
    levels = [level for level in budget.runs if level in _IN_DETAIL] or list(budget.runs)
    ends = {v: budget.attention(v)[:, -1, i] for v in levels}  # (seeds, L)
    start = budget.attention(levels[0])[0, 0, i]
    top = ends[levels[0]].mean(0)
    moved = np.argsort(-np.abs(top - start))[:num_tokens]
    order = moved[np.argsort(top[moved])]
    height = np.arange(len(order))
    axes.hlines(height, start[order], top[order], color="#CCCCCC", linewidth=5, zorder=1)
    axes.plot(start[order], height, "|", color=style.GREY, markersize=13, markeredgewidth=2.5,
              label="before training")  # fmt: skip
    for k, level in enumerate(levels):
        look = LOOKS[level]
        offset = (k - (len(levels) - 1) / 2) * -0.17
        mean = ends[level].mean(0)[order]
        if len(ends[level]) > 1:
            axes.errorbar(mean, height + offset, xerr=ends[level].std(0, ddof=1)[order], fmt="none",
                          ecolor=look.colour, elinewidth=1.2, zorder=2)  # fmt: skip
        axes.plot(mean, height + offset, look.marker, color=look.colour, label=level, markersize=6)
    axes.set_yticks(height, [style.word(classes.name(t)) for t in _tokens(classes, i)[order]])
    style.tidy(axes, f"… {style.word(classes.name(classes.query[i]))}  →  "
               f"{style.word(classes.name(classes.next_token[i]))}")  # fmt: skip
    axes.tick_params(axis="y", labelsize=11)
    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter("")
    axes.set_xlabel("attention $c$", fontsize=11)
    if legend:
        axes.legend(loc="lower right", fontsize=9.5, framealpha=0.95)


def _plot_over_time(axes: Axes, budget: ErrorBudget, what: str) -> None:
    later = budget.ts > 0
    ts = budget.ts[later]
    for level in budget.runs:
        look = LOOKS[level]
        values = getattr(budget, what)(level)[:, later]  # (seeds, T)
        axes.plot(ts, values.mean(0), look.line, color=look.colour, linewidth=look.width,
                  label=level)  # fmt: skip
        if len(values) > 1:
            spread = values.std(0, ddof=1)
            axes.fill_between(ts, values.mean(0) - spread, values.mean(0) + spread,
                              color=look.colour, alpha=0.18, linewidth=0)  # fmt: skip
    axes.set_xscale("log")
    axes.set_xlabel("time $t$ [steps]", fontsize=11)


def _plot_bars(axes: Axes, budget: ErrorBudget) -> None:
    """One bar a step on a logarithmic axis, its error of shape in full colour."""
    rows = [*budget.steps, *budget.branches]
    height = np.arange(len(rows))[::-1] - 0.6 * (np.arange(len(rows)) >= len(budget.steps))
    values = 100 * np.array([[step.logits[-1], step.shape[-1]] for step in rows])
    known = values[np.isfinite(values) & (values > 0)]
    low, high = (0.5 * known.min(), known.max()) if known.size else (0.1, 1.0)
    low = max(low, 1e-3)
    for y, (whole, shape), step in zip(height, values, rows, strict=True):
        colour = LOOKS[step.below].colour
        axes.barh(y, whole, height=0.36, color=colour, alpha=0.35)
        axes.barh(y, shape, height=0.36, color=colour)
        axes.text(1.1 * max(whole, low), y, _label(budget, step), va="center", fontsize=9.5)
        axes.text(1.02 * low, y + 0.24, f"{step.above} → {step.below}: {step.assumes}", va="bottom",
                  fontsize=8.5)  # fmt: skip
    if budget.branches:
        y = height[len(budget.steps)] + 0.75
        axes.text(1.02 * low, y, "beside the ladder", va="center", fontsize=9.5, style="italic")
    style.tidy(axes, "What each assumption costs")
    axes.grid(axis="y", visible=False)
    axes.set_yticks([])
    axes.set_xscale("log")
    axes.set_xlim(low, high * (high / low) ** 0.45)
    axes.set_ylim(height.min() - 0.5, 0.75 + height.max())
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_xlabel(
        "distance in attention logits $Z$, relative $L_2$ [%]; full colour: left after re-timing",
        fontsize=10,
    )


def _label(budget: ErrorBudget, step: Step) -> str:
    label = _percent(100 * step.logits[-1])
    if step.above == lv.SGD and (error := 100 * budget.standard_error(lv.SGD)[-1]) > 0:
        label += f"  (seeds alone: {_percent(error)})"
    return label


def _source(budget: ErrorBudget) -> str:
    source = budget.source
    if isinstance(source, SequenceClasses):
        return f"{source.num_classes} classes"
    return f"{len(source):,} windows of {source.name}, T = {source.context_length}"


def _percent(value: float) -> str:
    if not np.isfinite(value):
        return "not known"
    return f"{value:,.0f} %" if value >= 10 else f"{value:.2g} %"


def _moved_most(budget: ErrorBudget, count: int) -> NDArray[np.intp]:
    """Classes whose attention moved farthest among the more frequent half, of different queries
    where there are enough."""
    classes = budget.classes
    c = budget.attention(next(iter(budget.runs)))
    moved = np.abs(c[:, -1] - c[:, 0]).sum(-1).mean(0)
    weights = np.asarray(classes.weights)
    frequent = np.flatnonzero(weights >= np.median(weights))
    ranked = frequent[np.argsort(-moved[frequent], kind="stable")]
    _, first = np.unique(classes.query[ranked], return_index=True)
    leaders = ranked[np.sort(first)]
    return np.append(leaders, np.setdiff1d(ranked, leaders))[:count]


def _tokens(classes: SequenceClasses, i: int) -> NDArray[np.int32]:
    return np.where(classes.layout.mask[i], classes.ids[i], 0)
