"""`scan-snap solve`: integrate a gradient flow."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import numpy as np
import typer

import scan_snap_ode as sso
from scan_snap_ode import checks
from scan_snap_ode.cli import common as c
from scan_snap_ode.streams.windows import Windows


class FlowName(StrEnum):
    """Which flow, of which classes."""

    classes = "class"
    window = "window"
    modified = "modified"
    adiabatic = "adiabatic"
    slow = "slow"


_FLOWS = {
    FlowName.classes: sso.JointFlow,
    FlowName.window: sso.JointFlow,
    FlowName.modified: sso.ModifiedJointFlow,
    FlowName.adiabatic: sso.AdiabaticFlow,
    FlowName.slow: sso.SlowAttentionFlow,
}


_PANEL = "Gradient flow"


def solve(
    source: c.Source = "python-reference",
    *,
    flow: Annotated[
        FlowName,
        typer.Option(
            help="class: the joint flow for long windows; window: every observed window a class "
            "(texts only); modified: the paper's modified gradient; adiabatic: slow attention with "
            "the true gradient; slow: both, with the decoder in closed form.",
            rich_help_panel=_PANEL,
        ),
    ] = FlowName.classes,
    until: Annotated[
        float, typer.Option(help="Last time, in steps.", rich_help_panel=_PANEL)
    ] = 1000.0,
    records: Annotated[
        int, typer.Option(help="Number of recorded times.", rich_help_panel=_PANEL)
    ] = 50,
    rtol: Annotated[float, typer.Option(help="Relative tolerance.", rich_help_panel=_PANEL)] = 1e-7,
    of_text: c.TextOptions,
    rates: c.RateOptions,
    run: c.RunOptions,
) -> None:
    """Integrate a flow of the theory: the joint gradient flow of decoder and attention (paper,
    Lemmas 1 and 2), or one that assumes more.

    Writes trajectory.nc, trajectory.png and summary.json. For example:

      scan-snap solve syn-small --decoder 1 --attention 1

      scan-snap solve my-notes.txt --flow window --until 1e4
    """
    checks.positive("--until", until)
    checks.integer("--records", records, 2)
    checks.positive("--rtol", rtol)
    run.begin()
    problem = of_text.source(source, run.seed)
    classes = problem.classes() if isinstance(problem, Windows) else problem
    if flow is FlowName.window:
        if not isinstance(problem, Windows):
            raise ValueError(f"--flow window needs a text, {source} is synthetic.")
        classes = problem.as_classes()
    c.note(f"{classes}\n")
    ts = np.append(0, np.geomspace(until, min(1, until / 10), records - 1)[::-1])
    facts = {"command": "solve", "source": source, "flow": str(flow), "until": until, "rtol": rtol}
    with c.output_folder("solve", run.out) as folder:
        c.refuse_a_run_in(folder)
        trajectory = sso.integrate(
            _FLOWS[flow](classes), rates.rates, ts, rtol=rtol, progress=c.in_terminal()
        )
        c.write_trajectory(trajectory, folder, c.setting(of_text, rates, run, **facts))
