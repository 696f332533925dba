"""Figures 3, 8 and 9: the closed forms, with the numerical flow drawn over them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import diffrax
import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
from jaxtyping import Array
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from scan_snap_ode.figures import style
from scan_snap_ode.flows.joint import JointFlow
from scan_snap_ode.integrate import integrate
from scan_snap_ode.paper.figure import Agreement, PaperFigure, precision_now
from scan_snap_ode.problem.synthetic import single_common_token
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory.decoder_clock import decoder_clock, discrete_height, transition_times
from scan_snap_ode.theory.growth import growth_bound
from scan_snap_ode.training.train import train

if TYPE_CHECKING:
    import xarray as xr

_CLOSED, _NUMERICAL = "closed form", "numerical flow"


@dataclass(frozen=True)
class _ClosedForm(PaperFigure):
    """What the three share: `records` times on a logarithmic axis, and tolerances of the solve."""

    minutes = 0.2
    records: int = 200

    def _common_token(
        self, t: NDArray, rates: LearningRates, vocab_size: int, num_classes: int, c0: float
    ) -> NDArray[np.floating]:
        """(rates, T): the logit z of the common token, integrated in t together with the decoder's
        height (Lemma 6, Theorem 4), none of it in closed form."""
        M, K, rtol = vocab_size, num_classes, self._rtol()

        def field(_: Any, state: Array, pair: tuple[Array, Array]) -> Array:
            (u, z), (eta_Y, eta_Z) = state, pair
            soft = M - 1 + jnp.exp(u)  # u = M h
            gamma = (M - 1) ** 2 * (u / M) / soft
            return jnp.stack([M * eta_Y / (K * soft), -eta_Z * gamma * jnp.exp(4 * z) / c0])

        def one(eta_Y: Array, eta_Z: Array) -> Array:
            times = jnp.asarray(t, eta_Y.dtype)
            solution = diffrax.diffeqsolve(
                diffrax.ODETerm(field),
                diffrax.Dopri8(),
                times[0],
                times[-1],
                1e-3 / eta_Y,
                jnp.zeros(2, eta_Y.dtype),
                (eta_Y, eta_Z),
                saveat=diffrax.SaveAt(ts=times),
                stepsize_controller=diffrax.PIDController(rtol=rtol, atol=rtol / 100),
                max_steps=100_000,
            )
            assert solution.ys is not None
            return solution.ys[:, 1]

        return np.asarray(jax.jit(jax.vmap(one))(rates.decoder, rates.attention))

    def _rtol(self) -> float:
        return 1e-10 if precision_now() == "double" else 1e-5

    def _bound(self) -> float:
        return 1e-6 if precision_now() == "double" else 1e-3


@dataclass(frozen=True)
class GrowthFactor(_ClosedForm):
    """Figure 3."""

    number = 3
    title = "growth factor χ(t) of attention, and when it snaps"
    chosen = (
        "C0, which the paper does not print, is 1. With K = 10 that is outside the range in which "
        "the closed form is a limit of training: the figure shows the formula.",
        "χ = exp(2B) with B of Theorem 4, and exp(−2z) of the numerical flow of the common token, "
        "whose logit is z; a distinct token's own bound is exp(2B/K) for K equal classes.",
        "The time range, to 3,000 steps.",
    )
    vocab_size: int = 1000
    num_classes: int = 10
    attention: float = 0.5
    decoder: tuple[float, ...] = (0.5, 1.0, 2.0, 5.0)
    c0: float = 1.0
    until: float = 3000.0

    def compute(self, progress: bool, checkpoints: Path | None) -> xr.Dataset:
        import xarray as xr

        rates = LearningRates(np.array(self.decoder), self.attention)
        setting = rates, self.vocab_size, self.num_classes
        t = _log_times(self.until, self.records)
        B = np.asarray(growth_bound(t, *setting, self.c0))
        z = self._common_token(t, *setting, self.c0)
        times = transition_times(*setting)
        return xr.Dataset(
            {
                "chi": (("level", "decoder", "time"), np.exp(2 * np.stack([B, -z]))),
                "t0": ("decoder", np.asarray(times.t0), {"units": "steps"}),
                "t0_prime": ("decoder", np.asarray(times.t0_prime), {"units": "steps"}),
            },
            {"level": [_CLOSED, _NUMERICAL], "decoder": list(self.decoder), "time": t},
        )

    def compare(self, data: xr.Dataset) -> list[Agreement]:
        closed, numerical = data["chi"].values
        return [
            _exact(f"χ at η_Y = {eta:g}, numerical flow", a / b - 1, self._bound(), "relative")
            for eta, a, b in zip(self.decoder, numerical, closed, strict=True)
        ]

    def draw(self, data: xr.Dataset) -> matplotlib.figure.Figure:
        figure = style.sheet(7.2, 4.6)
        axes = figure.subplots()
        closed, numerical = data["chi"].values
        for i, eta in enumerate(data["decoder"].values):
            _pair(axes, data["time"].values, closed[i], numerical[i], i, f"$\\eta_Y$ = {eta:g}")
            _mark(axes, float(data["t0"][i]), data["time"].values, closed[i], i)
        axes.set_ylabel("growth factor $\\chi = e^{2B}$", fontsize=11)
        _finish(figure, [axes], self.until, f"$\\eta_Z$ = {self.attention:g}, $M$ = "
                f"{self.vocab_size:,}, $K$ = {self.num_classes}, $C_0$ = {self.c0:g}")  # fmt: skip
        return figure


@dataclass(frozen=True)
class DecoderHeight(_ClosedForm):
    """Figure 8."""

    number = 8
    title = "height h of the decoder's logits, and h* of gradient descent"
    chosen = (
        "The learning rates between the two ends of the paper's ranges, (0.1 to 2) at M = 50 and "
        "(0.2 to 4) at M = 1,000, and one class (K = 1), so that time counts its visits.",
        "The numerical flow is the exact gradient flow of one class at η_Z = 1e-9; h is read off "
        "its decoder as (score of the next token − score of another)/M.",
        "The time range, to 500 visits.",
    )
    vocab_sizes: tuple[int, ...] = (50, 1000)
    decoder: tuple[tuple[float, ...], ...] = ((0.1, 0.2, 0.5, 1.0, 2.0), (0.2, 0.5, 1.0, 2.0, 4.0))
    until: int = 500

    def compute(self, progress: bool, checkpoints: Path | None) -> xr.Dataset:
        import xarray as xr

        t = _log_times(self.until, self.records)
        steps = np.arange(self.until + 1)
        kept = np.unique(np.round(_log_times(self.until, self.records)).astype(int))
        h, descent, trained = [], [], []
        for M, decoder in zip(self.vocab_sizes, self.decoder, strict=True):
            rates = LearningRates(np.array(decoder), 1e-9)
            classes = single_common_token(1, M, 0.1, 10)
            rtol = self._rtol()
            numerical = integrate(JointFlow(classes), rates, t, rtol=rtol, atol=rtol / 100)
            h.append(np.stack([decoder_clock(t, rates, M, 1).h, _height(numerical)]))
            descent.append(np.asarray(discrete_height(self.until, rates, M))[:, kept])
            run = train(classes, rates, self.until, batch_size=None, record_at=kept)
            trained.append(_height(run))
        curve = ("vocab_size", "rate", "visits")
        return xr.Dataset(
            {
                "h": (("vocab_size", "level", "rate", "time"), np.stack(h)),
                "h_star": (curve, np.stack(descent)),
                "h_trained": (curve, np.stack(trained)),
                "decoder": (("vocab_size", "rate"), np.array(self.decoder)),
            },
            {
                "level": [_CLOSED, _NUMERICAL],
                "vocab_size": list(self.vocab_sizes),
                "time": t,
                "visits": steps[kept],
            },
        )

    def compare(self, data: xr.Dataset) -> list[Agreement]:
        rows = []
        for i, M in enumerate(self.vocab_sizes):
            closed, numerical = data["h"].values[i]
            star, trained = data["h_star"].values[i], data["h_trained"].values[i]
            rates = LearningRates(data["decoder"].values[i], 1.0)
            gap = star - np.asarray(decoder_clock(data["visits"].values, rates, M, 1).h)
            share = gap * M / data["decoder"].values[i][:, None]
            rows += [
                _exact(f"M h at M = {M:,}, by the flow", M * (numerical - closed), self._bound()),
                _exact(f"M h* at M = {M:,}, by training", M * (trained - star), self._bound()),
                Agreement(f"h* − h at M = {M:,}, largest", float(share.max()), np.nan,
                          float(share.max()), 1.0, "η_Y/M (Lemma 7 allows 2)"),
                Agreement(f"h* − h at M = {M:,}, smallest", float(share.min()), np.nan,
                          float(-share.min()), self._bound(), "η_Y/M below 0"),
            ]  # fmt: skip
        return rows

    def draw(self, data: xr.Dataset) -> matplotlib.figure.Figure:
        figure = style.sheet(10.5, 4.6)
        panels = list(np.atleast_1d(figure.subplots(1, len(self.vocab_sizes))))
        for i, axes in enumerate(panels):
            closed, numerical = data["h"].values[i]
            M = self.vocab_sizes[i]
            for j, eta in enumerate(self.decoder[i]):
                name = f"$\\eta_Y$ = {eta:g}"
                _pair(axes, data["time"].values, M * closed[j], M * numerical[j], j, name)
                axes.plot(data["visits"].values[1:], M * data["h_star"].values[i, j, 1:], "--",
                          color=style.CYCLE[j], linewidth=1.2)  # fmt: skip
            axes.set_ylabel("height $M\\,h$ of the logits [nats]", fontsize=11)
            axes.legend(fontsize=9, frameon=False, loc="upper left")
            style.tidy(axes, f"$M$ = {M:,}")
        _finish(figure, panels, self.until, "", legend=False)
        descent = Line2D([], [], linestyle="--", color=style.GREY, label="$h^*$, gradient descent")
        handles = [*_styles(), descent]
        figure.legend(handles=handles, loc="outside lower center", ncols=3, fontsize=10,
                      frameon=False)  # fmt: skip
        for axes in panels:
            axes.set_xlabel("visits of the class [steps]", fontsize=11)
        return figure


@dataclass(frozen=True)
class AttentionGrowth(_ClosedForm):
    """Figure 9."""

    number = 9
    title = "growth B(t) of attention at a fixed ratio of the learning rates"
    chosen = (
        "The printed caption inverts ν; its axes fit ν = η_Y/η_Z, K = 1 and C0 = 1, taken here.",
        "The learning rates η_Z between the two ends of the paper's range, 0.5 to 8, and the time "
        "range, to 1,000 steps. At such rates t0 may be below one step: this is about the flow.",
    )
    vocab_sizes: tuple[int, ...] = (100, 10_000)
    ratios: tuple[float, ...] = (10.0, 1.0)
    attention: tuple[float, ...] = (0.5, 1.0, 2.0, 4.0, 8.0)
    num_classes: int = 1
    c0: float = 1.0
    until: float = 1000.0

    def compute(self, progress: bool, checkpoints: Path | None) -> xr.Dataset:
        import xarray as xr

        t = _log_times(self.until, self.records)
        eta_Z = np.array(self.attention)
        B, at_t0, t0 = [], [], []
        for M, ratio in zip(self.vocab_sizes, self.ratios, strict=True):
            rates = LearningRates(ratio * eta_Z, eta_Z)
            setting = rates, M, self.num_classes
            t0.append(np.asarray(transition_times(*setting).t0))
            z = self._common_token(t, *setting, self.c0)
            B.append(np.stack([np.asarray(growth_bound(t, *setting, self.c0)), -z]))
            order = np.argsort(t0[-1])
            numerical = self._common_token(np.append(0, t0[-1][order]), *setting, self.c0)
            at_t0.append(-numerical[order, 1 + np.arange(len(order))][np.argsort(order)])
        return xr.Dataset(
            {
                "B": (("panel", "level", "attention", "time"), np.stack(B), {"units": "nats"}),
                "t0": (("panel", "attention"), np.stack(t0), {"units": "steps"}),
                "B_at_t0": (("panel", "attention"), np.stack(at_t0), {"units": "nats"}),
                "vocab_size": ("panel", list(self.vocab_sizes)),
                "ratio": ("panel", list(self.ratios)),
            },
            {"level": [_CLOSED, _NUMERICAL], "attention": list(eta_Z), "time": t},
        )

    def compare(self, data: xr.Dataset) -> list[Agreement]:
        rows = []
        for i, (M, ratio) in enumerate(zip(self.vocab_sizes, self.ratios, strict=True)):
            closed, numerical = data["B"].values[i]
            at_t0 = data["B_at_t0"].values[i]
            where = f"M = {M:,}, ν = {ratio:g}"
            rows += [
                _exact(f"B at {where}, numerical flow", numerical - closed, self._bound()),
                _exact(f"B(t0) at {where}, one for all η_Z", at_t0 - at_t0[0], self._bound()),
            ]
        return rows

    def draw(self, data: xr.Dataset) -> matplotlib.figure.Figure:
        figure = style.sheet(10.5, 4.6)
        panels = list(np.atleast_1d(figure.subplots(1, len(self.ratios))))
        t = data["time"].values
        for i, axes in enumerate(panels):
            closed, numerical = data["B"].values[i]
            for j, eta in enumerate(self.attention):
                _pair(axes, t, closed[j], numerical[j], j, f"$\\eta_Z$ = {eta:g}")
                _mark(axes, float(data["t0"][i, j]), t, closed[j], j)
            axes.axhline(float(data["B_at_t0"][i, 0]), color=style.GREY, linewidth=1, zorder=0)
            axes.set_ylabel("growth $B$ of attention [nats]", fontsize=11)
            axes.legend(fontsize=9, frameon=False, loc="lower right")
            ratio = f"$\\eta_Y/\\eta_Z$ = {self.ratios[i]:g}"
            style.tidy(axes, f"$M$ = {self.vocab_sizes[i]:,}, {ratio}")
        _finish(figure, panels, self.until, "", legend=False)
        ring = _ring("$t_0$: the height is the same for all rates")
        figure.legend(handles=[*_styles(), ring], loc="outside lower center", ncols=3,
                      fontsize=10, frameon=False)  # fmt: skip
        return figure


def _log_times(until: float, records: int) -> NDArray[np.float64]:
    return np.append(0.0, np.geomspace(until / 1e4, until, records - 1))


def _height(run: Any) -> NDArray[np.floating]:
    """h of one class: the score of its next token is (M−1) h, that of every other −h."""
    f = np.asarray(run.attention)
    f = f / np.linalg.norm(f, axis=-1, keepdims=True)
    scores = np.einsum("...ns,...sd->...nd", f, np.asarray(run.decoder))[..., 0, :]
    return (scores[..., 0] - scores[..., 1]) / run.classes.vocab_size


def _exact(what: str, difference: Any, bound: float, unit: str = "absolute") -> Agreement:
    largest = float(np.max(np.abs(difference)))
    return Agreement(what, largest, 0.0, largest, bound, unit)


def _pair(axes: Axes, t: Any, closed: Any, numerical: Any, i: int, name: str) -> None:
    """The closed form as a broad pale line, the numerical flow as dots on it."""
    colour = style.CYCLE[i % len(style.CYCLE)]
    axes.plot(t, closed, color=colour, linewidth=4, alpha=0.4, label=name)
    axes.plot(t[::8], numerical[::8], ".", color=colour, markersize=5)


def _styles() -> list[Line2D]:
    return [
        Line2D([], [], color=style.GREY, linewidth=4, alpha=0.5, label=_CLOSED),
        Line2D([], [], color=style.GREY, marker=".", linestyle="", label=_NUMERICAL),
    ]


def _ring(label: str) -> Line2D:
    return Line2D([], [], marker="o", linestyle="", color=style.BLACK, markerfacecolor="white",
                  label=label)  # fmt: skip


def _mark(axes: Axes, time: float, t: NDArray, values: NDArray, i: int) -> None:
    """A ring where a curve passes its t₀."""
    height = np.interp(time, t, values)
    axes.plot(time, height, "o", markersize=8, color=style.CYCLE[i % len(style.CYCLE)],
              markerfacecolor="white", markeredgewidth=1.8, zorder=4)  # fmt: skip


def _finish(
    figure: matplotlib.figure.Figure,
    panels: list[Axes],
    until: float,
    title: str,
    legend: bool = True,
) -> None:
    for axes in panels:
        if title:
            style.tidy(axes, title)
        axes.set_xscale("log")
        axes.set_xlim(max(until / 1e4, 0.1), until)
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("time $t$ [steps]", fontsize=11)
    if legend:
        curves, _ = panels[0].get_legend_handles_labels()
        handles = [*curves, *_styles(), _ring("$t_0$")]
        figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=10,
                      frameon=False)  # fmt: skip
