"""One page over all figures of a folder: pictures, settings, and the table of agreements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from scan_snap_ode import files


def write_index(folder: Path) -> Path:
    """Write index.md about every figure_N.json in `folder`."""
    paths = sorted(folder.glob("figure_*.json"), key=lambda path: int(path.stem.split("_")[1]))
    records = [json.loads(path.read_text("utf-8")) for path in paths]
    lines = ["# The figures of *Scan and Snap*, made anew", "", *_summary(records)]
    for record in records:
        lines += ["", *_section(record, folder)]
    with files.whole(folder / "index.md") as temporary:
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "index.md"


def agreements_table(agreements: list[dict[str, Any]]) -> list[str]:
    """The comparison as rows of a Markdown table."""
    lines = [
        "| number | ours | reference | deviation | asked | met |",
        "|---|---:|---:|---:|---:|---|",
    ]
    for a in agreements:
        lines.append(
            f"| {a['what']} | {number(a['ours'])} | {number(a['reference'])} "
            f"| {number(a['deviation'])} {a['unit']} | ≤ {a['bound']:g} "
            f"| {'yes' if a['met'] else '**no**'} |"
        )
    return lines


def number(value: float | None) -> str:
    """Four digits; a dash where there is none."""
    return "–" if value is None or value != value else f"{value:.4g}"


def _summary(records: list[dict[str, Any]]) -> list[str]:
    lines = ["| figure | | comparisons met | seconds, last call |", "|---|---|---:|---:|"]
    for r in records:
        rows = r["agreements"]
        met = f"{sum(a['met'] for a in rows)} of {len(rows)}" if rows else "none published"
        name = f"[{r['figure']}](#figure-{r['figure']})"
        lines.append(f"| {name} | {r['title']} | {met} | {r['seconds']:.0f} |")
    return lines


def _section(record: dict[str, Any], folder: Path) -> list[str]:
    stem = f"figure_{record['figure']}"
    setting = ", ".join(
        f"{name.replace('_', ' ')} {_value(value)}"
        for name, value in record["setting"].items()
        if name not in ("figure", "thresholds")
    )
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items())
    lines = [
        f"## Figure {record['figure']}",
        "",
        f"{record['title'][0].upper()}{record['title'][1:]}. {_links(stem, folder)}",
        "",
        f"![Figure {record['figure']}]({stem}.png)",
        "",
        f"Setting: {setting}. Versions: {versions}.",
        "",
        *(f"- {note}" for note in record["chosen_here"]),
    ]
    if record["agreements"]:
        lines += ["", *agreements_table(record["agreements"])]
    return lines


def _links(stem: str, folder: Path) -> str:
    """What there is of a figure beside its picture."""
    kinds = {"pdf": "PDF", "nc": "data", "json": "setting"}
    there = [f"[{name}]({stem}.{kind})" for kind, name in kinds.items()
             if (folder / f"{stem}.{kind}").exists()]  # fmt: skip
    return f"{', '.join(there)}."


def _value(value: Any) -> str:
    if isinstance(value, list):
        return f"({', '.join(map(_value, value))})"
    return f"{value:g}" if isinstance(value, float) else str(value)
