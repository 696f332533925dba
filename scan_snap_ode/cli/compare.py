"""`scan-snap compare`: the main job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import scan_snap_ode as sso
from scan_snap_ode import checks, files, netcdf
from scan_snap_ode.budget import levels as lv
from scan_snap_ode.cli import common as c
from scan_snap_ode.cli.interrupts import finishing
from scan_snap_ode.streams.windows import Windows

_PANEL = "Levels"


def compare(
    source: c.Source = "python-reference",
    *,
    levels: Annotated[
        str | None,
        typer.Option(
            help="Which levels, separated by commas: SGD, gradient descent, optimizer flow, window "
            "flow (texts), finite-context flow, class flow, adiabatic flow, modified flow, slow "
            "attention, closed form. all: those that are usual. Default: all, but on a text the "
            "optimizer flow, which takes long, only with --momentum.",
            rich_help_panel=_PANEL,
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            help="Relative distance in Z up to which a level counts as valid.",
            rich_help_panel=_PANEL,
        ),
    ] = 0.1,
    of_text: c.TextOptions,
    rates: c.RateOptions,
    training: c.TrainingOptions,
    run: c.RunOptions,
) -> None:
    """Train on a text by SGD, integrate the flows of the theory for the same model, and say how far
    apart they are, one assumption a step: SGD → gradient descent → optimizer flow → window flow →
    class flow → modified flow → slow attention → closed form. First, which assumptions hold.

    Writes summary.json, trajectories.nc and compare.png. For example:

      scan-snap compare

      scan-snap compare my-notes.txt --queries the,of --out result

      scan-snap compare wikitext-2 --split valid --folder data

      scan-snap compare syn-small --levels "class flow,slow attention"
    """
    checks.positive("--tolerance", tolerance)
    run.begin()
    problem = of_text.source(source, run.seed)
    c.note(f"{problem}\n")
    of_windows = isinstance(problem, Windows)
    context_length = problem.context_length if of_windows else of_text.context_length or 128
    classes = problem.classes() if of_windows else problem
    report = classes.check_assumptions(rates.rates.with_momentum(training.momentum), context_length)
    typer.echo(f"{report}\n")
    facts = {"command": "compare", "source": source, "levels": levels, "tolerance": tolerance}
    setting = c.setting(of_text, rates, training, run, **facts)
    setting["assumptions"] = report.to_dicts()
    with c.output_folder("compare", run.out) as folder:
        try:
            budget = sso.error_budget(
                problem,
                rates.rates,
                c.record_times(training.steps),
                levels=_levels(levels, problem, training.momentum),
                tolerance=tolerance,
                rtol=1e-5,  # far below SGD's noise; the table says what it costs
                atol=1e-7,
                context_length=context_length,
                num_seeds=training.seeds,
                seed=run.seed,
                batch_size=training.batch_size,
                momentum=training.momentum,
                progress=c.in_terminal(),
                on_level=lambda level, _: c.note(f"{level}: done"),
            )
        except sso.Interrupted as stopped:
            with finishing():
                _write(stopped.partial, folder, setting)
                c.written(folder)
            raise
        with finishing():
            _write(budget, folder, setting)
            typer.echo(budget)
            c.written(folder)


def _levels(asked: str | None, problem: Any, momentum: float) -> list[str] | None:
    """As error_budget() takes them."""
    if asked is not None:
        return None if asked == "all" else c.names(asked)
    ladder = lv.LADDERS[type(problem)]
    unusual = set(ladder.optional)
    if isinstance(problem, Windows) and not momentum:
        unusual.add(lv.OPTIMIZER_FLOW)
    return [level for level in ladder.levels if level not in unusual]


def _write(budget: sso.ErrorBudget, folder: Path, setting: dict) -> None:
    netcdf.save_budget(budget, folder / "trajectories.nc")
    source: dict[str, Any] = {
        "classes": budget.classes.num_classes,
        "vocabulary": budget.classes.vocab_size,
    }
    if isinstance(windows := budget.source, Windows):
        source |= {"name": windows.name, "md5": windows.md5, "windows": len(windows)}
    result = budget.summary() if budget.runs else {}
    complete = {"complete": budget.unfinished is None and len(budget.runs) > 1}
    files.save_json(folder / "summary.json", complete | setting | {"source": source} | result)
    if len(budget.runs) > 1:
        from scan_snap_ode.figures import style

        style.save(budget.plot(), folder / "compare.png")
