"""`scan-snap figure`: the paper's figures."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import jax
import typer

from scan_snap_ode import checks, files
from scan_snap_ode.cli import common as c
from scan_snap_ode.cli.interrupts import finishing

if TYPE_CHECKING:
    from scan_snap_ode.paper import PaperFigure, Reproduction

_SETTING, _OUTPUT = "Setting", "Output"
_FOLDER = "checkpoints"


@dataclass(frozen=True)
class SettingOptions:
    """What of a figure's setting may be changed."""

    steps: Annotated[
        int | None,
        typer.Option(help="Training steps; default: the paper's.", rich_help_panel=_SETTING),
    ] = None
    seeds: Annotated[
        int | None,
        typer.Option(help="Number of runs, with seeds SEED, SEED+1, …", rich_help_panel=_SETTING),
    ] = None
    seed: Annotated[int, typer.Option(help="First random seed.", rich_help_panel=_SETTING)] = 0
    corpus: Annotated[
        str | None,
        typer.Option(
            help="Text of figures 7 and 10: wikitext-2, wikitext-103, or a text file, of which the "
            "last tenth is held out. Default: wikitext-2.",
            rich_help_panel=_SETTING,
        ),
    ] = None
    folder: Annotated[
        Path | None,
        typer.Option(
            help="Folder that holds WikiText; default: $SCAN_SNAP_DATA.", rich_help_panel=_SETTING
        ),
    ] = None
    vocab_size: Annotated[
        int | None,
        typer.Option(
            help="Of figures 7 and 10: the most frequent words that stay; default: all.",
            rich_help_panel=_SETTING,
        ),
    ] = None

    def __post_init__(self) -> None:
        for name in ("steps", "seeds", "vocab_size"):
            if (value := getattr(self, name)) is not None:
                least = 2 if name == "vocab_size" else 1
                checks.integer(f"--{name.replace('_', '-')}", value, least)
        checks.seed("--seed", self.seed, self.seeds or 1)

    def figures(self, kinds: list[type[PaperFigure]], fast: bool) -> list[PaperFigure]:
        """The figures with what was given; an option that none of them knows is refused."""
        asked = {("num_seeds" if f.name == "seeds" else f.name): getattr(self, f.name)
                 for f in fields(self)}  # fmt: skip
        given = {name: value for name, value in asked.items() if value not in (None, 0)}
        known = [{f.name for f in fields(kind)} for kind in kinds]
        for name in given:
            if not any(name in names for names in known):
                option = "seeds" if name == "num_seeds" else name.replace("_", "-")
                shown = ", ".join(str(kind.number) for kind in kinds)
                raise ValueError(f"--{option} must be left out for figure {shown}.")
        made = []
        for kind, names in zip(kinds, known, strict=True):
            own = {name: value for name, value in given.items() if name in names}
            made.append(kind.fast(**own) if fast else kind(**own))
        return made


def figure(
    numbers: Annotated[
        list[str], typer.Argument(help="Which: numbers from 3 to 12, or all.", metavar="NUMBER...")
    ],
    *,
    fast: Annotated[
        bool, typer.Option("--fast", help="A small version, under a minute each on two cores.")
    ] = False,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Keep the figures that an earlier call with the same --out finished, and go on "
            "with half-done training.",
        ),
    ] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write to; default: ./scan-snap-out/figure-N.", rich_help_panel=_OUTPUT
        ),
    ] = None,
    precision: Annotated[
        c.Precision | None,
        typer.Option(
            help="Floating-point type; default: single for training (6, 7, 10 to 12), else double.",
            rich_help_panel=_OUTPUT,
        ),
    ] = None,
    setting: SettingOptions,
) -> None:
    """Redraw figures of the paper with this package, beside the theory and the published numbers.

    3 growth of attention; 4, 5 attention maps of Syn-Small by SGD and Adam; 6 sparsity against the
    ratio of learning rates; 7 attention of a Transformer on WikiText-2; 8 the decoder's height; 9
    growth at a fixed ratio; 10 entropy against the learning rate; 11, 12 recall of distinct tokens.

    Writes figure_N.png, .pdf, .nc (all data) and .json (setting, versions, comparison) of each, and
    index.md over all. Figures 7 and 10 need WikiText-2, or another text by --corpus; they keep
    checkpoints, and go on with --resume after a kill, to the same numbers. For example:

      scan-snap figure 6

      scan-snap figure all --fast

      scan-snap figure 10 --out figures --resume
    """
    if resume and out is None:
        raise ValueError("--resume needs --out, the folder to go on in.")
    figures = setting.figures(_kinds(numbers), fast)
    with c.output_folder("figure", out) as folder:
        if not resume:
            _refuse_earlier(folder, figures)
        wanted = [f for f in figures if not (resume and _finished(folder, f, precision))]
        for each in wanted:
            each.prepare()
        for each in figures:
            if each not in wanted:
                typer.echo(f"Figure {each.number}: kept, as an earlier call made it.")
                continue
            _make(each, folder, fast, precision)
        with finishing():
            from scan_snap_ode.paper.index import write_index

            write_index(folder)
            c.written(folder)


def _kinds(numbers: list[str]) -> list[type[PaperFigure]]:
    """The figures by their numbers, rising."""
    from scan_snap_ode.paper import FIGURES

    known = ", ".join(map(str, sorted(FIGURES)))
    words = [word for given in numbers for word in given.replace(",", " ").split()]
    chosen = set()
    for word in words:
        if word == "all":
            chosen |= set(FIGURES)
        elif word.isdecimal() and int(word) in FIGURES:
            chosen.add(int(word))
        else:
            raise ValueError(f"NUMBER must be one of {known}, or all, was {word}.")
    if not chosen:
        raise ValueError(f"NUMBER must be one of {known}, or all, was empty.")
    return [FIGURES[n] for n in sorted(chosen)]


def _precision(figure: PaperFigure, asked: c.Precision | None) -> str:
    return figure.precision if asked is None else str(asked)


def _make(figure: PaperFigure, folder: Path, fast: bool, precision: c.Precision | None) -> None:
    from scan_snap_ode.paper import reproduce

    jax.config.update("jax_enable_x64", _precision(figure, precision) == "double")
    expected = "under a minute" if fast else _duration(figure.expected_minutes)
    typer.echo(f"Figure {figure.number}: {figure.title} ({expected} on two cores)")
    checkpoints = folder / _FOLDER
    try:
        made = reproduce(figure, progress=c.in_terminal(), checkpoints=checkpoints)
    except KeyboardInterrupt:
        if _halves(folder, figure):
            typer.echo("To go on, repeat the command with --resume and this --out.", err=True)
        raise
    with finishing():
        made.save(folder)
        for path in _halves(folder, figure):
            path.unlink()
        if checkpoints.exists() and not any(checkpoints.iterdir()):
            checkpoints.rmdir()
        typer.echo(_report(made))


def _halves(folder: Path, figure: PaperFigure) -> list[Path]:
    """Checkpoints of half-done training."""
    return sorted((folder / _FOLDER).glob(f"figure_{figure.number}-*.npz"))


def _refuse_earlier(folder: Path, figures: list[PaperFigure]) -> None:
    for figure in figures:
        earlier = [*folder.glob(f"figure_{figure.number}.json"), *_halves(folder, figure)]
        if earlier:
            raise ValueError(
                f"--out must not hold figure {figure.number}, {earlier[0]} exists; name another "
                "folder, or go on with it by --resume."
            )


def _finished(folder: Path, figure: PaperFigure, precision: c.Precision | None) -> bool:
    """Whether the folder holds the figure; ValueError where it holds it in another setting."""
    path = folder / f"figure_{figure.number}.json"
    if not path.exists():
        return False
    try:
        held = json.loads(path.read_text("utf-8"))["setting"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} must be of this command, was not: {error}.") from error
    asked = files.plain(figure.setting | {"precision": _precision(figure, precision)})
    for name in sorted({*held, *asked}):
        if held.get(name) != asked.get(name):
            raise ValueError(
                f"--out must hold figure {figure.number} of the same setting, {path} has {name} "
                f"{held.get(name)!r} where {asked.get(name)!r} is asked for."
            )
    return True


def _duration(minutes: float) -> str:
    if minutes < 1:
        return "under a minute"
    if minutes < 90:
        return f"about {minutes:.0f} minute{'s' * (round(minutes) != 1)}"
    return f"about {minutes / 60:.1f} hours"


def _report(made: Reproduction) -> str:
    """How long it took, and the comparison."""
    from scan_snap_ode.paper.index import number

    rows = made.agreements
    met = sum(row.met for row in rows)
    compared = f"{met} of {len(rows)} comparisons met" if rows else "no published numbers"
    lines = [f"  {made.seconds:.1f} s; {compared}"]
    if rows:
        width = max(len(row.what) for row in rows)
        lines += [
            f"  {row.what:<{width}}  {number(row.ours):>9}  {number(row.reference):>9}  "
            f"{number(row.deviation):>9} ≤ {row.bound:g} {row.unit}{'' if row.met else '  NOT MET'}"
            for row in rows
        ]
        head = f"  {'':<{width}}  {'ours':>9}  {'reference':>9}  {'deviation':>9}"
        lines.insert(1, head)
    return "\n".join([*lines, ""])
