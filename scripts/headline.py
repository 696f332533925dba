"""The documentation's headline figure: Figure 4 of the paper, its law and its experiment.

Syn-Small from zero, momentum 0.9, batches of 128 windows of 128 tokens, learning rates (1, 1) and
(10, 1), five seeds: this package's SGD, the authors' published means, the flow with momentum and
finite windows, and the flow with rates η/(1 − μ). Nothing is fitted. Takes a minute:

    python scripts/headline.py docs/headline.png
"""

import sys
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter
from numpy.typing import NDArray

import scan_snap_ode as sso
from scan_snap_ode import measures
from scan_snap_ode.figures import style
from scan_snap_ode.paper import published

STEPS, MOMENTUM, CONTEXT = 100, 0.9, 128
SEEDS, MANY, FEWER = 5, 100, 40  # drawn; the others are for the printed table
RATES = ((1.0, 1.0), (10.0, 1.0))
OBSERVABLES = (
    ("Entropy, distinct tokens", "entropy of $c$ on distinct\ntokens, renormalised [nats]"),
    ("Common mass", "share of attention $c$\non common tokens"),
    ("Largest weight", "largest attention\nweight, max $c$"),
)
AUTHORS_STEPS = np.array([10, 100])
# Mean and sample std over 5 seeds, (2, 3, steps).
AUTHORS = {
    pair: np.array([published.FIGURE_4[pair][step][1:] for step in AUTHORS_STEPS]).T
    for pair in RATES
}
SGD = "SGD, 5 seeds, mean ± std"
FLOW = "flow with momentum and finite windows"
NAIVE = r"flow with rates $\eta/(1-\mu)$"


def observables(run: sso.Trajectory) -> NDArray[np.float64]:
    """(3, ...) of every seed and time, each the mean over both classes."""
    found = measures.distinct_entropy(run), measures.common_mass(run), measures.largest_weight(run)
    return np.array([values.mean(-1) for values in found])


def runs(pair: tuple[float, float], ts: NDArray[np.integer]) -> dict[str, NDArray[np.float64]]:
    """The observables of each level at steps `ts`."""
    classes, rates = sso.syn_small(), sso.LearningRates(*pair)
    corrected = sso.HeavyBall(sso.FiniteContext(sso.JointFlow(classes), CONTEXT), MOMENTUM)
    naive = sso.integrate(sso.JointFlow(classes), rates.with_momentum(MOMENTUM), ts)

    def trained(batch_size: int | None, num_seeds: int) -> NDArray[np.float64]:
        run = sso.train(
            classes,
            rates,
            STEPS,
            batch_size=batch_size,
            momentum=MOMENTUM,
            context_length=CONTEXT,
            num_seeds=num_seeds,
            record_at=ts,
        )
        return observables(run)

    many = trained(128, MANY)
    return {
        SGD: many[:, :SEEDS],
        f"SGD, {MANY} seeds": many,
        f"SGD, {FEWER} seeds, batches of 1,024": trained(1024, FEWER),
        "gradient descent on the mean over all windows": trained(None, 1),
        FLOW: observables(sso.integrate(corrected, rates, ts)),
        NAIVE: observables(naive),
    }


def draw(
    axes: Axes,
    ts: NDArray[np.integer],
    found: dict[str, NDArray[np.float64]],
    k: int,
    authors: tuple[NDArray[np.float64], NDArray[np.float64]],
) -> None:
    """One observable at one pair of rates."""
    seeds = found[SGD][k]
    mean, spread = seeds.mean(0), seeds.std(0, ddof=1)
    axes.fill_between(ts, mean - spread, mean + spread, color=style.SKY, alpha=0.45, linewidth=0)
    axes.plot(ts, mean, color=style.BLUE, linewidth=1.6, label=SGD)
    axes.plot(ts, found[NAIVE][k], ":", color=style.GREY, linewidth=2.2, label=NAIVE)
    axes.plot(ts, found[FLOW][k], "--", color=style.VERMILION, linewidth=2.2, label=FLOW)
    axes.errorbar(AUTHORS_STEPS, authors[0][k], yerr=authors[1][k], fmt="o", color=style.BLACK,
                  markersize=4.5, elinewidth=1.3, capsize=3, zorder=4,
                  label="the authors, 5 seeds, mean ± std")  # fmt: skip
    style.tidy(axes)
    axes.set_xscale("log")
    axes.set_xlim(1, 1.25 * STEPS)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.xaxis.set_minor_formatter(NullFormatter())


def table(
    pair: tuple[float, float], ts: NDArray[np.integer], found: dict[str, NDArray[np.float64]]
) -> None:
    """The numbers, as Markdown: mean ± standard error where there are many seeds, else ± std."""
    print(f"\nrates ({pair[0]:g}, {pair[1]:g}):\n")
    print("| step | level | distinct entropy | common mass | max c |\n|---|---|---|---|---|")
    for column, step in enumerate(AUTHORS_STEPS):
        mean, std = AUTHORS[pair][..., column]
        rows = [("the authors, 5 seeds, ± std", *map("{:.4f} ± {:.4f}".format, mean, std))]
        for name, values in found.items():
            at = values[..., int(np.flatnonzero(ts == step)[0])]
            if at.ndim == 1:
                rows.append((name, *(f"{x:.4f}" for x in at)))
                continue
            count = at.shape[1]
            spread = at.std(1, ddof=1) / (1 if count == SEEDS else np.sqrt(count))
            rows.append((name, *map("{:.4f} ± {:.4f}".format, at.mean(1), spread)))
        for row in rows:
            print(f"| {step} | " + " | ".join(row) + " |")


def main(path: Path) -> None:
    """Draw and print."""
    ts = np.union1d(np.geomspace(1, STEPS, 40).round().astype(int), AUTHORS_STEPS)
    figure = style.sheet(9.4, 6.2)
    panels = figure.subplots(2, 3, sharex=True, sharey="col")
    for row, pair in zip(panels, RATES, strict=True):
        found = runs(pair, ts)
        table(pair, ts, found)
        authors = AUTHORS[pair]
        for k, axes in enumerate(row):
            draw(axes, ts, found, k, (authors[0], authors[1]))
            axes.set_ylabel(OBSERVABLES[k][1], fontsize=10)
    for axes, (title, _) in zip(panels[0], OBSERVABLES, strict=True):
        axes.set_title(title, loc="left", fontsize=12, fontweight="bold", pad=22)
    for row, (decoder, attention) in zip(panels, RATES, strict=True):
        text = f"rates $\\eta_Y$ = {decoder:g}, $\\eta_Z$ = {attention:g}"
        row[0].annotate(text, (0, 1), (0, 6), xycoords="axes fraction", fontsize=11,
                        textcoords="offset points")  # fmt: skip
    for axes in panels[1]:
        axes.set_xlabel("time $t$ [steps of SGD]", fontsize=10)
    named = panels[0, 0].get_legend_handles_labels()
    figure.legend(*named, loc="outside lower center", ncols=2, fontsize=10, frameon=False)
    style.few_colours(style.save(figure, path), path)


if __name__ == "__main__":
    sso.enable_double_precision()
    main(Path(sys.argv[1]))
