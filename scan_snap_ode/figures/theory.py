"""The closed forms over time: the decoder's height, what drives attention, and how far it grows."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from scan_snap_ode.figures import style
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory.decoder_clock import decoder_clock, transition_times
from scan_snap_ode.theory.growth import growth_bound

_PANELS = (
    ("The decoder", "height $M\\,h$ of its logits"),
    ("The drive of attention", "speed $\\gamma$"),
    ("Intrinsic time", "$\\Gamma = \\eta_Z \\int \\gamma\\,dt$"),
    ("The growth of attention", "bound $B$ on a logit's move [nats]"),
)


def plot_theory(t: Any, rates: LearningRates, vocab_size: Any, num_classes: Any, c0: Any) -> Figure:
    """M h, γ, Γ and B over time, a curve for each pair of rates (paper, Figure 3).

    t₀' and t₀ are vertical lines where there is one pair of rates, else points on the curves.

    Args:
        t: increasing times in steps, (T,); those above 0 are drawn, on a logarithmic axis.
        rates: with at most one axis.
        vocab_size: M ≥ 4.
        num_classes: K ≥ 1.
        c0: C₀ > 0 of Theorem 4.

    Raises:
        ValueError: for an argument that is not as above.
    """
    if len(rates.shape) > 1:
        raise ValueError(f"rates must have at most one axis to be drawn, had {len(rates.shape)}.")
    eta_Y, eta_Z = np.atleast_1d(rates.decoder), np.atleast_1d(rates.attention)
    rates = LearningRates(eta_Y, eta_Z)
    clock = decoder_clock(t, rates, vocab_size, num_classes)
    B = growth_bound(t, rates, vocab_size, num_classes, c0)
    t = np.asarray(t)
    later = t > 0
    if (count := np.count_nonzero(later)) < 2:
        raise ValueError(f"t must hold two times above 0 or more, held {count}.")
    t = t[later]
    curves = [np.asarray(x)[:, later] for x in (vocab_size * clock.h, clock.gamma, clock.Gamma, B)]
    times = transition_times(rates, vocab_size, num_classes)
    snaps = {"$t_0'$": np.asarray(times.t0_prime), "$t_0$": np.asarray(times.t0)}
    figure = style.sheet(11, 7.6)
    figure.suptitle(
        f"$M$ = {vocab_size:,g} tokens, $K$ = {num_classes:,g} classes, $C_0$ = {c0:g}",
        x=0.01, ha="left", fontsize=13,
    )  # fmt: skip
    panels = figure.subplots(2, 2, sharex=True)
    for axes, values, (title, label) in zip(panels.flat, curves, _PANELS, strict=True):
        for i in range(len(eta_Y)):
            colour, line = style.CYCLE[i % 6], ("-", "--", ":")[i // 6 % 3]
            axes.plot(t, values[i], line, color=colour, linewidth=2,
                      label=f"$\\eta_Y$ = {eta_Y[i]:g}, $\\eta_Z$ = {eta_Z[i]:g}")  # fmt: skip
        style.tidy(axes, title)
        axes.set_ylabel(label, fontsize=11)
        axes.set_xscale("log")
        axes.set_xlim(t[0], t[-1])
        axes.set_ylim(0, 1.12 * values.max() or 1)
        if len(eta_Y) == 1:
            _lines(axes, snaps)
        else:
            _points(axes, snaps, t, values)
    for axes in panels[1]:
        axes.set_xlabel("time $t$ [steps]", fontsize=11)
    named = panels[0, 0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=6, fontsize=10, frameon=False)
    return figure


def _lines(axes: Axes, snaps: dict[str, np.ndarray]) -> None:
    """Named vertical lines at the times of one pair of rates."""
    first, last = axes.get_xlim()
    for name, (time,) in snaps.items():
        if first < time < last:
            axes.axvline(time, color=style.GREY, linewidth=1.2, linestyle="--", zorder=1)
            axes.annotate(name, (time, 1), (3, -3), xycoords=("data", "axes fraction"),
                          textcoords="offset points", va="top", fontsize=11)  # fmt: skip


def _points(axes: Axes, snaps: dict[str, np.ndarray], t: np.ndarray, values: np.ndarray) -> None:
    """Named points on each curve at its own times."""
    for (name, times), face in zip(snaps.items(), ("white", style.BLACK), strict=True):
        shown = (times > t[0]) & (times < t[-1])
        heights = [np.interp(np.log(s), np.log(t), v) for s, v in zip(times, values, strict=True)]
        axes.plot(times[shown], np.asarray(heights)[shown], "o", color=style.BLACK,
                  markerfacecolor=face, markersize=6, zorder=3, label=name)  # fmt: skip
