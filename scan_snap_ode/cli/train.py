"""`scan-snap train`: SGD."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import scan_snap_ode as sso
from scan_snap_ode.cli import common as c
from scan_snap_ode.streams.windows import Windows


class Optimizer(StrEnum):
    """Update rule."""

    sgd = "sgd"
    adam = "adam"


class Init(StrEnum):
    """Initial values."""

    zeros = "zeros"
    uniform = "uniform"


def train(
    source: c.Source = "python-reference",
    *,
    optimizer: Annotated[Optimizer, typer.Option(help="Update rule.")] = Optimizer.sgd,
    init: Annotated[
        Init, typer.Option(help="Initial values: zeros, or uniform in ±1/sqrt(M).")
    ] = Init.zeros,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume", help="Go on from what an earlier call with the same --out left there."
        ),
    ] = False,
    of_text: c.TextOptions,
    rates: c.RateOptions,
    training: c.TrainingOptions,
    run: c.RunOptions,
) -> None:
    """Train decoder and attention by SGD on windows of a text, or on fresh synthetic windows.

    Writes trajectory.nc (also while it runs: a killed call goes on with --resume, to the same
    numbers), trajectory.png and summary.json. For example:

      scan-snap train syn-small --batch-size 128 --momentum 0.9 --steps 100

      scan-snap train my-notes.txt --steps 100000 --out long-run

      scan-snap train my-notes.txt --steps 100000 --out long-run --resume
    """
    if resume and run.out is None:
        raise ValueError("--resume needs --out, the folder of the run to go on with.")
    run.begin()
    problem = of_text.source(source, run.seed)
    c.note(f"{problem}\n")
    facts = {"command": "train", "source": source, "optimizer": str(optimizer), "init": str(init)}
    with c.output_folder("train", run.out) as folder:
        file = folder / "trajectory.nc"
        if not resume:
            c.refuse_a_run_in(folder, ", or go on with it by --resume")
        try:
            trajectory = sso.train(
                problem,
                rates.rates,
                training.steps,
                batch_size=training.batch_size,
                context_length=None if isinstance(problem, Windows) else of_text.context_length,
                momentum=training.momentum,
                optimizer=str(optimizer),
                init=_earlier(file, str(init)) if resume else str(init),
                num_seeds=training.seeds,
                seed=run.seed,
                record_at=c.record_times(training.steps),
                progress=c.in_terminal(),
                checkpoint=file,
            )
        except sso.Interrupted:
            c.written(folder)
            typer.echo("To go on, repeat the command with --resume and this --out.", err=True)
            raise
        c.write_trajectory(trajectory, folder, c.setting(of_text, rates, training, run, **facts))


def _earlier(file: Path, init: str) -> sso.Trajectory:
    """The run to go on with; all but its initial values the library compares."""
    run = sso.load(file)
    if run.about.get("init") != init:
        raise ValueError(f"--init must be that of the run, {run.about.get('init')}, was {init}.")
    return run
