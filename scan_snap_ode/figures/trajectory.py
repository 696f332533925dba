"""One run: its attention, entropy and loss."""

from __future__ import annotations

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from scan_snap_ode import checks
from scan_snap_ode.figures import style
from scan_snap_ode.trajectory import Trajectory


def plot_trajectory(run: Trajectory, num_classes: int = 6, num_tokens: int = 20) -> Figure:
    """Attention at the last time (of the first run where there are many), entropy by class, loss.

    Raises:
        ValueError: for a run with no records.
    """
    if not checks.is_concrete(run) or len(run.ts) == 0:
        raise ValueError("the Trajectory must hold recorded values to be drawn, had none.")
    num_runs = int(np.prod(run.axes))
    while run.axes:
        run = run.at(0)
    figure = style.sheet(13, 4.9)
    title = (
        f"{run.about['method']}, rates η_Y = {run.rates.decoder:g}, η_Z = {run.rates.attention:g}"
    )
    which = f", the first of {num_runs} runs" if num_runs > 1 else ""
    figure.suptitle(title + which, x=0.01, ha="left", fontsize=13)
    attention, entropy, loss = figure.subplots(1, 3, width_ratios=[1.5, 1, 1])
    classes = run.measured_classes
    shown = np.argsort(-np.asarray(classes.weights), kind="stable")[:num_classes]
    _plot_attention(attention, run, shown, num_tokens)
    time = np.asarray(run.ts)
    later = time > 0
    entropies = np.asarray(run.entropy)
    for k, i in enumerate(shown):
        entropy.plot(time[later], entropies[later, i], linewidth=2,
                     color=style.CYCLE[k % len(style.CYCLE)],
                     label=_class_name(run, int(i)))  # fmt: skip
    style.tidy(entropy, "Attention entropy")
    entropy.set_ylabel("entropy of $c$ [nats]", fontsize=11)
    entropy.legend(fontsize=8.5, framealpha=0.95)
    loss.plot(time[later], np.asarray(run.loss)[later], color=style.BLACK, linewidth=2)
    style.tidy(loss, "Loss")
    loss.set_ylabel("loss $-J$ [nats]", fontsize=11)
    for axes in (entropy, loss):
        axes.set_xscale("log")
        axes.set_xlabel("time $t$ [steps]", fontsize=11)
    return figure


def _plot_attention(axes: Axes, run: Trajectory, shown: np.ndarray, num_tokens: int) -> None:
    classes = run.measured_classes
    c = np.asarray(run.attention)[-1][shown]
    tokens = np.sort(np.argsort(-c.max(0), kind="stable")[:num_tokens])
    image = axes.imshow(c[:, tokens], aspect="auto", cmap="cividis",
                        norm=PowerNorm(0.5, vmin=0))  # fmt: skip
    names = [style.word(classes.name(t), 10) for t in run.support_tokens[tokens]]
    axes.set_xticks(range(len(tokens)), names, rotation=90, fontsize=9)
    axes.set_yticks(range(len(shown)), [_class_name(run, int(i)) for i in shown], fontsize=9)
    axes.set_title(f"Attention $c$ at $t$ = {float(run.ts[-1]):,.4g}", loc="left", fontsize=12,
                   fontweight="bold")  # fmt: skip
    held, all_classes = len(run.support_tokens), classes.num_classes
    most = f" (the {len(tokens)} most attended of {held})" if len(tokens) < held else ""
    axes.set_xlabel("contextual token" + most, fontsize=11)
    most = f" (the {len(shown)} most frequent of {all_classes})" if len(shown) < all_classes else ""
    axes.set_ylabel("query → next token" + most, fontsize=10)
    figure = axes.get_figure()
    assert figure is not None
    figure.colorbar(image, ax=axes, pad=0.02, label="attention, square-root scale")


def _class_name(run: Trajectory, i: int) -> str:
    classes = run.measured_classes
    query, following = classes.query[i], classes.next_token[i]
    return f"{style.word(classes.name(query), 10)} → {style.word(classes.name(following), 10)}"
