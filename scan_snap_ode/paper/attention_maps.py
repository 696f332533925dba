"""Figures 4 and 5: attention on Syn-Small while it is trained."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import matplotlib.figure
import numpy as np
from matplotlib.axes import Axes
from numpy.typing import NDArray

from scan_snap_ode import measures
from scan_snap_ode.figures import style
from scan_snap_ode.flows.finite_context import FiniteContext
from scan_snap_ode.flows.heavy_ball import HeavyBall
from scan_snap_ode.flows.joint import JointFlow
from scan_snap_ode.integrate import integrate
from scan_snap_ode.paper import published
from scan_snap_ode.paper.figure import Agreement, PaperFigure
from scan_snap_ode.problem.synthetic import syn_small
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.training.train import train
from scan_snap_ode.trajectory import Trajectory

if TYPE_CHECKING:
    import xarray as xr

_NAMES = {
    "entropy": "entropy of $c$ [nats]",
    "distinct_entropy": "entropy of $c$ on distinct\ntokens, renormalised [nats]",
    "common_mass": "share of $c$ on\ncommon tokens",
    "largest": "largest weight,\nmax $c$",
}


@dataclass(frozen=True)
class _SynSmall(PaperFigure):
    """Syn-Small from zero: batches of 128 windows of 128 tokens, 100 steps."""

    rates: tuple[tuple[float, float], ...] = ((1.0, 1.0), (10.0, 1.0))
    momentum: float = 0.9
    optimizer: str = "sgd"
    steps: int = 100
    batch_size: int = 128
    context_length: int = 128
    num_seeds: int = 100
    seed: int = 0

    @classmethod
    def fast(cls, **given: Any) -> Self:
        return cls(**{"num_seeds": 5, **given})

    def _rates(self) -> LearningRates:
        decoder, attention = np.array(self.rates).T
        return LearningRates(decoder, attention)

    def _flow(self, t: NDArray) -> Trajectory | None:
        return None

    def compute(self, progress: bool, checkpoints: Path | None) -> xr.Dataset:
        import xarray as xr

        steps = np.arange(self.steps + 1)
        classes = syn_small()
        run = train(
            classes,
            self._rates(),
            self.steps,
            batch_size=self.batch_size,
            context_length=self.context_length,
            momentum=self.momentum,
            optimizer=self.optimizer,
            num_seeds=self.num_seeds,
            seed=self.seed,
            record_at=steps,
            progress=progress,
        )
        shape = (self.num_seeds, len(self.rates), self.steps + 1)
        c = np.asarray(run.attention, np.float64)
        c = c.reshape(*shape, *c.shape[-2:])
        of_token, of_run = ("rates", "step", "class", "token"), ("seed", "rates", "step")
        data: dict[str, Any] = {
            "attention": (of_token, c.mean(0)),
            "attention_of_first_seed": (of_token, c[0]),
        }
        for name, values in _statistics(run).items():
            data[name] = (of_run, values.reshape(shape), _units(name))
        flow = self._flow(steps.astype(float))
        if flow is not None:
            data["flow_attention"] = (of_token, np.asarray(flow.attention))
            for name, values in _statistics(flow).items():
                data[f"flow_{name}"] = (of_run[1:], values, _units(name))
        return xr.Dataset(
            data,
            {
                "seed": self.seed + np.arange(self.num_seeds),
                "step": steps,
                "decoder": ("rates", np.array([pair[0] for pair in self.rates])),
                "attention_rate": ("rates", np.array([pair[1] for pair in self.rates])),
                "token": run.support_tokens,
                "class_next": ("class", classes.next_token),
            },
        )

    def _maps(
        self, data: xr.Dataset, columns: list[tuple[str, str]], extra: int
    ) -> tuple[matplotlib.figure.Figure, Any]:
        """A row for each pair of rates: c of both classes over the steps for each of `columns`,
        then `extra` empty panels."""
        classes = syn_small()
        count = classes.num_classes * len(columns)
        rows = len(self.rates)
        figure = style.sheet(1.9 * count + 2.7 * extra, 2.5 * rows + 0.6)
        widths = [1.0] * count + [1.25] * extra
        panels = figure.subplots(rows, count + extra, squeeze=False, width_ratios=widths)
        top = max(float(data[name].max()) for name, _ in columns)
        image = None
        for r, (decoder, attention) in enumerate(self.rates):
            for k in range(count):
                i, (name, label) = k // len(columns), columns[k % len(columns)]
                axes = panels[r, k]
                tokens = np.concatenate([classes.common_tokens, classes.distinct_tokens(i)])
                kept = np.searchsorted(data["token"].values, tokens)
                c = data[name].values[r, :, i, kept]  # (token, step)
                image = axes.imshow(c, aspect="auto", cmap="cividis", vmin=0, vmax=top,
                                    interpolation="nearest", origin="lower")  # fmt: skip
                axes.axhline(len(classes.common_tokens) - 0.5, color="white", linewidth=1)
                axes.tick_params(labelsize=9)
                if r == 0:
                    axes.set_title(f"class {i + 1}: {label}", loc="left", fontsize=10)
                if r == rows - 1:
                    axes.set_xlabel("step", fontsize=10)
                if k == 0:
                    axes.set_ylabel(f"$\\eta_Y$ = {decoder:g}, $\\eta_Z$ = {attention:g}\n"
                                    "token", fontsize=10)  # fmt: skip
                common = len(classes.common_tokens)
                axes.set_yticks([common / 2 - 0.5, common * 1.5 - 0.5], ["common", "distinct"],
                                rotation=90, va="center")  # fmt: skip
                axes.tick_params(axis="y", length=0)
                if k:
                    axes.set_yticks([])
        assert image is not None
        bar = figure.colorbar(image, ax=panels[:, :count], location="bottom", shrink=0.4,
                              aspect=40, pad=0.03)  # fmt: skip
        bar.set_label("attention $c$ on a token", fontsize=10)
        return figure, panels[:, count:]


@dataclass(frozen=True)
class AttentionMaps(_SynSmall):
    """Figure 4."""

    number = 4
    title = "attention on Syn-Small by SGD with momentum, and by the flow that knows of it"
    minutes = 0.5
    chosen = (
        "Maps of SGD are means over all seeds; the paper shows one run.",
        "The flow has momentum and windows of 128 tokens: HeavyBall of FiniteContext of JointFlow.",
    )

    def _flow(self, t: NDArray) -> Trajectory:
        flow = FiniteContext(JointFlow(syn_small()), self.context_length)
        return integrate(HeavyBall(flow, self.momentum), self._rates(), t)

    def compare(self, data: xr.Dataset) -> list[Agreement]:
        rows = []
        for r, pair in enumerate(self.rates):
            for step, statistics in published.FIGURE_4.get(pair, {}).items():
                if step > self.steps:
                    continue
                for name, given in zip(published.STATISTICS, statistics, strict=True):
                    what = f"{name.replace('_', ' ')} at {pair}, step {step}"
                    ours = data[name].values[:, r, step]
                    rows.append(Agreement.of_means(what, ours, given, published.FIGURE_4_SEEDS))
        return rows

    def draw(self, data: xr.Dataset) -> matplotlib.figure.Figure:
        columns = [("attention", "SGD"), ("flow_attention", "flow")]
        figure, panels = self._maps(data, columns, extra=2)
        for r, pair in enumerate(self.rates):
            for axes, name in zip(panels[r], ("distinct_entropy", "largest"), strict=True):
                self._curve(axes, data, r, pair, name)
                if r == len(self.rates) - 1:
                    axes.set_xlabel("step", fontsize=10)
        named = panels[0, 0].get_legend_handles_labels()
        figure.legend(*named, loc="outside lower right", ncols=3, fontsize=9, frameon=False)
        return figure

    def _curve(
        self, axes: Axes, data: xr.Dataset, r: int, pair: tuple[float, float], name: str
    ) -> None:
        steps, ours = data["step"].values, data[name].values[:, r]
        mean, spread = ours.mean(0), ours.std(0, ddof=1)
        axes.fill_between(steps, mean - spread, mean + spread, color=style.SKY, alpha=0.45,
                          linewidth=0)  # fmt: skip
        axes.plot(steps, mean, color=style.BLUE, label=f"SGD, {len(ours)} seeds, ± std")
        axes.plot(steps, data[f"flow_{name}"].values[r], "--", color=style.VERMILION, linewidth=2,
                  label="flow")  # fmt: skip
        known = published.FIGURE_4.get(pair, {})
        column = published.STATISTICS.index(name)
        if known:
            values = np.array([row[column] for row in known.values()])
            axes.errorbar([*known], values[:, 0], yerr=values[:, 1], fmt="o", color=style.BLACK,
                          markersize=4, capsize=3, label="the authors, 5 seeds, ± std")  # fmt: skip
        style.tidy(axes)
        axes.set_ylabel(_NAMES[name], fontsize=9)
        axes.tick_params(labelsize=9)


@dataclass(frozen=True)
class AdamMaps(_SynSmall):
    """Figure 5."""

    number = 5
    title = "attention on Syn-Small by Adam"
    minutes = 0.3
    chosen = (
        "Adam's own constants are the usual ones, 0.9, 0.999 and 1e-8, without bias in its memory.",
        "The paper prints no numbers for this figure, and no flow of this package speaks of Adam.",
    )
    rates: tuple[tuple[float, float], ...] = ((0.1, 0.1), (0.5, 0.5), (1.0, 1.0))
    momentum: float = 0.0
    optimizer: str = "adam"
    num_seeds: int = 5

    def draw(self, data: xr.Dataset) -> matplotlib.figure.Figure:
        figure, panels = self._maps(data, [("attention_of_first_seed", "Adam, one run")], extra=2)
        for r in range(len(self.rates)):
            for axes, name in zip(panels[r], ("distinct_entropy", "common_mass"), strict=True):
                values = data[name].values[:, r]
                axes.plot(data["step"].values, values.T, color=style.SKY, linewidth=1)
                axes.plot(data["step"].values, values.mean(0), color=style.BLUE, linewidth=2)
                style.tidy(axes)
                axes.tick_params(labelsize=9)
                axes.set_ylabel(_NAMES[name], fontsize=9)
                if r == len(self.rates) - 1:
                    axes.set_xlabel("step", fontsize=10)
        panels[0, 0].set_title(f"{self.num_seeds} seeds and their mean", loc="left", fontsize=10)
        return figure


def _units(name: str) -> dict[str, str]:
    return {"units": "nats" if "entropy" in name else "1"}


def _statistics(run: Trajectory) -> dict[str, NDArray[np.floating]]:
    """Those of `published.STATISTICS`, (..., T), the mean over classes."""
    found = (
        np.asarray(run.entropy),
        measures.distinct_entropy(run),
        measures.common_mass(run),
        measures.largest_weight(run),
    )
    return {name: values.mean(-1) for name, values in zip(published.STATISTICS, found, strict=True)}
