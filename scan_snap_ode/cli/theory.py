"""`scan-snap theory`: the closed forms, without any data."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

import scan_snap_ode as sso
from scan_snap_ode import checks, files
from scan_snap_ode.cli import common as c
from scan_snap_ode.cli.interrupts import finishing
from scan_snap_ode.theory.decoder_clock import TransitionTimes

_SETTING, _RATES = "Setting", "Learning rates"
_SHOWN = 8  # times in a printed table


@dataclass(frozen=True)
class SettingOptions:
    """What the closed forms depend on beside the learning rates."""

    vocab_size: Annotated[
        int, typer.Option(help="M, number of tokens; at least 4.", rich_help_panel=_SETTING)
    ] = 1000
    classes: Annotated[
        int,
        typer.Option(
            help="K, number of equally frequent classes; each is visited t/K times.",
            rich_help_panel=_SETTING,
        ),
    ] = 10
    c0: Annotated[
        float,
        typer.Option(
            help="C0 of Theorem 4, how strongly a common token holds on: 1/((K-1) f0^4), where f0 "
            "= P(common)/|P_i|_2. Smaller: attention moves sooner.",
            rich_help_panel=_SETTING,
        ),
    ] = 1.0

    def __post_init__(self) -> None:
        checks.integer("--vocab-size", self.vocab_size, 4)
        checks.integer("--classes", self.classes, 1)
        checks.positive("--c0", self.c0)


@dataclass(frozen=True)
class SeveralRateOptions:
    """Learning rates, several of the decoder's."""

    decoder: Annotated[
        str,
        typer.Option(
            help="Learning rate η_Y of the decoder, per step; several, separated by commas, are "
            "drawn together.",
            rich_help_panel=_RATES,
        ),
    ] = "0.5,1,2,5"
    attention: Annotated[
        float,
        typer.Option(help="Learning rate η_Z of the attention, per step.", rich_help_panel=_RATES),
    ] = 0.5

    def __post_init__(self) -> None:
        checks.positive("--decoder", self._decoders())
        if len(self._decoders()) > 20:
            raise ValueError(
                f"--decoder must be at most 20 numbers, was {len(self._decoders())} of them."
            )
        checks.positive("--attention", self.attention)

    def _decoders(self) -> list[float]:
        try:
            return [float(word) for word in self.decoder.split(",")]
        except ValueError as error:
            raise ValueError(
                f"--decoder must be numbers separated by commas, was {self.decoder!r}."
            ) from error

    @property
    def rates(self) -> sso.LearningRates:
        """As the library takes them, one axis."""
        return sso.LearningRates(self._decoders(), self.attention)


def theory(
    *,
    until: Annotated[
        float | None, typer.Option(help="Last time, in steps; default: 100 times the latest t0.")
    ] = None,
    records: Annotated[
        int, typer.Option(help="Number of times written and drawn, 0 among them.")
    ] = 200,
    setting: SettingOptions,
    of_rates: SeveralRateOptions,
    run: c.RunOptions,
) -> None:
    """Evaluate the paper's closed forms: when attention goes from scanning to snapping.

    h is the height of the decoder's logits, γ the speed at which it drives attention (it peaks,
    then fades), Γ = η_Z ∫γ dt, and B = ¼ ln(1 + 4Γ/C0) bounds how far a logit of attention has
    moved by then (Lemmas 5 to 8, Theorem 4). From t0 on attention has snapped: B grows as ln ln t.

    Writes theory.csv, theory.png and summary.json. The default is the setting of the paper's
    Figure 3, which does not say C0. For example:

      scan-snap theory --vocab-size 34 --classes 2 --decoder 1

      scan-snap theory --decoder 0.1,1,10 --attention 0.1 --c0 0.01 --until 1e9
    """
    if until is not None:
        checks.positive("--until", until)
    checks.integer("--records", records, 3, at_most=100_000)
    run.begin()
    M, K, rates = setting.vocab_size, setting.classes, of_rates.rates
    times = sso.transition_times(rates, M, K)
    last = 100 * float(np.max(times.t0)) if until is None else until
    first = min(float(np.min(times.t0_prime)), last) / 100
    t = np.append(0, np.geomspace(last, first, records - 1)[::-1])
    clock = sso.decoder_clock(t, rates, M, K)
    B = sso.growth_bound(t, rates, M, K, setting.c0)
    curves = {"h": clock.h, "gamma": clock.gamma, "Gamma": clock.Gamma, "B": B}
    values = np.stack([np.asarray(curve) for curve in curves.values()], -1)  # (rates, t, 4)
    if not np.isfinite(values).all():
        raise ValueError(
            f"--until and the other numbers must fit {run.precision} precision, did not at "
            f"--until {last:g}."
        )
    moments = _moments(times, rates, setting)
    facts = {"command": "theory", "until": last, "records": records}
    summary = c.setting(setting, of_rates, run, **facts) | {
        "delta": times.delta[0],
        "peak_speed": times.peak_speed[0],
        "rates": moments,
    }
    with c.output_folder("theory", run.out) as folder, finishing():
        from scan_snap_ode.figures import style
        from scan_snap_ode.figures.theory import plot_theory

        _write(folder / "theory.csv", [*curves], t, rates, values)
        files.save_json(folder / "summary.json", summary)
        style.save(plot_theory(t, rates, M, K, setting.c0), folder / "theory.png")
        typer.echo(_report(summary, t, values))
        c.written(folder)


def _moments(
    times: TransitionTimes, rates: sso.LearningRates, setting: SettingOptions
) -> list[dict[str, float]]:
    """When each pair of rates snaps, and how far it has come by t0."""
    M, K = setting.vocab_size, setting.classes
    # Every pair of rates at every t0, of which its own is wanted.
    h = np.diagonal(sso.decoder_clock(times.t0, rates, M, K).h)
    B = np.diagonal(sso.growth_bound(times.t0, rates, M, K, setting.c0))
    columns = {
        "decoder": rates.decoder,
        "attention": rates.attention,
        "peak": times.peak,
        "t0_prime": times.t0_prime,
        "t0": times.t0,
        "crossing": times.crossing,
        "h_at_t0": h,
        "B_at_t0": B,
    }
    return [
        dict(zip(columns, row, strict=True))
        for row in np.stack([np.asarray(x) for x in columns.values()], -1).tolist()
    ]


def _write(
    path: Path, names: list[str], t: np.ndarray, rates: sso.LearningRates, values: np.ndarray
) -> None:
    """A row for each pair of rates and time."""
    pairs = np.stack([rates.decoder, rates.attention], -1)
    rows = [
        [*pair.tolist(), time.item(), *numbers.tolist()]
        for pair, of_pair in zip(pairs, values, strict=True)
        for time, numbers in zip(t, of_pair, strict=True)
    ]
    with (
        files.whole(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        csv.writer(file).writerows([["decoder", "attention", "t", *names], *rows])


def _report(summary: dict[str, Any], t: np.ndarray, values: np.ndarray) -> str:
    """Two tables: when attention snaps, and the clock at some times."""
    asked, moments = summary["setting"], summary["rates"]
    M = asked["vocab_size"]
    text = [
        f"Attention in closed form: M = {M:,} tokens, K = {asked['classes']:,} classes, "
        f"C0 = {asked['c0']:g}",
        f"  δ = {summary['delta']:.4f} in t0 = 2(1+δ) K ln M/η_Y",
        f"  γ peaks at {summary['peak_speed']:.4f}, whatever the rates",
        "\nWhen attention snaps, in steps\n",
        _table(
            ("η_Y", "η_Z", "γ peaks", "t0'", "t0", "crossing", "M h(t0)", "B(t0)"),
            [
                (
                    f"{m['decoder']:g}",
                    f"{m['attention']:g}",
                    *(_steps(m[name]) for name in ("peak", "t0_prime", "t0", "crossing")),
                    f"{M * m['h_at_t0']:.4f}",
                    f"{m['B_at_t0']:.4f}",
                )
                for m in moments
            ],
        ),
    ]
    shown = np.unique(np.linspace(1, len(t) - 1, _SHOWN).round().astype(int))
    for m, of_pair in zip(moments, values, strict=True):
        text += [
            f"\nη_Y = {m['decoder']:g}, η_Z = {m['attention']:g}\n",
            _table(
                ("t", "h", "M h", "γ", "Γ", "B"),
                [
                    (
                        _steps(float(t[k])),
                        f"{h:.4g}",
                        f"{M * h:.4f}",
                        f"{g:.4g}",
                        f"{G:,.4g}",
                        f"{B:.4f}",
                    )
                    for k, (h, g, G, B) in zip(shown, of_pair[shown], strict=True)
                ],
            ),
        ]
    return "\n".join(text)


def _steps(t: float) -> str:
    return f"{t:,.1f}" if t < 1e6 else f"{t:.4g}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Numbers in columns, to the right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    return "\n".join(
        "  " + "  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True))
        for row in (head, *rows)
    )
