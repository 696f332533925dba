"""`scan-snap classes`: what a corpus holds."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Annotated

import typer

from scan_snap_ode import checks, files
from scan_snap_ode.cli import common as c
from scan_snap_ode.streams.windows import ClassSummary


def classes(
    text: c.Text = "python-reference",
    *,
    top: Annotated[int, typer.Option(help="Words to show of each kind.")] = 5,
    of_text: c.TextOptions,
    run: c.RunOptions,
) -> None:
    """Show the sequence classes of a text: one per pair of query and next word, how often it
    occurs, its most frequent common words (other classes hold them too) and distinct ones.

    Writes classes.csv. For example:

      scan-snap classes my-notes.txt --queries the,of --classes 20
    """
    checks.integer("--top", top, 1)
    windows = of_text.windows(text, run.seed)
    summary = windows.summary(top)
    with c.output_folder("classes", run.out) as folder:
        _write(summary, folder / "classes.csv")
        typer.echo(f"{windows}\n\n{_table(summary)}")
        c.written(folder)


def _write(summary: list[ClassSummary], path: Path) -> None:
    with (
        files.whole(path) as temporary,
        temporary.open("w", newline="", encoding="utf-8") as file,
    ):
        writer = csv.DictWriter(file, list(summary[0]))
        writer.writeheader()
        writer.writerows(
            {k: " ".join(v) if isinstance(v, list) else v for k, v in row.items()}
            for row in summary
        )


def _table(summary: list[ClassSummary]) -> str:
    rows = [("query", "next", "windows", "share", "tokens", "common words", "distinct words")]
    for s in summary:
        rows.append(
            (
                s["query"],
                s["next"],
                f"{s['windows']:,}",
                f"{s['weight']:.1%}",
                f"{s['support']:,}",
                " ".join(s["common"]),
                " ".join(s["distinct"]) or "–",
            )
        )
    widths = [max(len(row[k]) for row in rows) for k in range(6)]
    numeric = {2, 3, 4}
    return "\n".join(
        "  ".join(
            cell.rjust(widths[k]) if k in numeric else cell.ljust(widths[k]) if k < 6 else cell
            for k, cell in enumerate(row)
        ).rstrip()
        for row in rows
    )
