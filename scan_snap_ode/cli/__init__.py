"""The `scan-snap` command."""

from __future__ import annotations

import io
import sys
from typing import Any

import typer

from scan_snap_ode.cli.classes import classes
from scan_snap_ode.cli.common import command
from scan_snap_ode.cli.compare import compare
from scan_snap_ode.cli.figure import figure
from scan_snap_ode.cli.interrupts import heard, say
from scan_snap_ode.cli.solve import solve
from scan_snap_ode.cli.theory import theory
from scan_snap_ode.cli.train import train

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="The training dynamics of self-attention: the gradient flows of Scan and Snap (Tian et "
    "al., NeurIPS 2023), SGD on real text, and what each assumption costs.\n\n"
    "Start with `scan-snap compare`: it needs no argument.",
)


def _show_version(wanted: bool) -> None:
    if wanted:
        from scan_snap_ode import __version__

        typer.echo(f"scan-snap {__version__}")
        raise typer.Exit


@app.callback()
def _main(
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


for _command in (compare, solve, train, theory, figure, classes):
    app.command()(command(_command))


# What Click, which Typer brings along, calls a UsageError.
_UsageError: Any = typer.BadParameter.__base__


def main() -> None:
    """Entry point of `scan-snap` and `python -m scan_snap_ode`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # a C locale must not stop at a Greek letter
            stream.reconfigure(encoding="utf-8", errors="replace")
    try:
        with heard():
            code = app(prog_name="scan-snap", standalone_mode=False)
    except _UsageError as error:
        code = error.exit_code
        if error.format_message():  # none where the help was shown instead
            say(f"error: {error.format_message()}")
    sys.exit(code)
