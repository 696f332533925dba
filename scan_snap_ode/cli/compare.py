"""`scan-snap compare`: the main job."""

from __future__ import annotations

from pathlib import Path

import typer

import scan_snap_ode as sso
from scan_snap_ode import files, netcdf
from scan_snap_ode.cli import common as c
from scan_snap_ode.cli.interrupts import finishing
from scan_snap_ode.streams.windows import Windows


def compare(
    text: c.Text = "python-reference",
    *,
    of_text: c.TextOptions,
    rates: c.RateOptions,
    training: c.TrainingOptions,
    run: c.RunOptions,
) -> None:
    """Train on a text by SGD, integrate the gradient flow of the same model, and say how far apart
    they are: SGD → gradient descent → window flow → class flow, one assumption a step. First, which
    of the theory's assumptions hold.

    Writes summary.json, trajectories.nc and compare.png. For example:

      scan-snap compare

      scan-snap compare my-notes.txt --queries the,of --out result

      scan-snap compare wikitext-2 --split valid --folder data
    """
    run.begin()
    windows = of_text.windows(text, run.seed)
    c.note(f"{windows}\n")
    report = windows.classes().check_assumptions(
        rates.rates.with_momentum(training.momentum), windows.context_length
    )
    typer.echo(f"{report}\n")
    setting = c.setting(of_text, rates, training, run, command="compare", text=text)
    setting["assumptions"] = report.to_dicts()
    with c.output_folder("compare", run.out) as folder:
        try:
            budget = sso.error_budget(
                windows,
                rates.rates,
                c.record_times(training.steps),
                num_seeds=training.seeds,
                seed=run.seed,
                batch_size=training.batch_size,
                momentum=training.momentum,
                progress=c.in_terminal(),
                on_level=lambda level, _: c.note(f"{level}: done"),
            )
        except sso.Interrupted as stopped:
            with finishing():
                _write(stopped.partial, windows, folder, setting)
                c.written(folder)
            raise
        with finishing():
            _write(budget, windows, folder, setting)
            typer.echo(budget)
            c.written(folder)


def _write(budget: sso.ErrorBudget, windows: Windows, folder: Path, setting: dict) -> None:
    netcdf.save_budget(budget, folder / "trajectories.nc")
    source = {
        "name": windows.name,
        "md5": windows.md5,
        "windows": len(windows),
        "classes": windows.classes().num_classes,
        "vocabulary": windows.vocab_size,
    }
    result = budget.summary() if budget.runs else {}
    complete = {"complete": budget.unfinished is None and len(budget.runs) > 1}
    files.save_json(folder / "summary.json", complete | setting | {"source": source} | result)
    if len(budget.runs) > 1:
        from scan_snap_ode.figures import style

        style.save(budget.plot(), folder / "compare.png")
