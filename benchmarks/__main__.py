"""Run every benchmark, print a table, write JSON with versions and machine.

    python -m benchmarks [--out FILE] [--repeats N]

Each figure is the median over repeats in one process, with the smallest and largest; compilation is
timed apart from running. These are figures, not tests: quote medians, on an idle machine.
"""

from __future__ import annotations

import argparse
import os
import platform
from pathlib import Path

import scan_snap_ode as sso
from benchmarks import core
from scan_snap_ode import files


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("benchmarks.json"), help="JSON to write")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each (default: 5)")
    options = parser.parse_args()
    sso.enable_double_precision()
    rows: list[core.Figure] = []
    done = 0
    for benchmark in core.ALL:
        rows.extend(benchmark(options.repeats))
        print(*rows[done:], sep="\n", flush=True)
        done = len(rows)
    machine = {
        "processor": platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0))
        if hasattr(os, "sched_getaffinity")
        else os.cpu_count(),
        "system": platform.platform(),
    }
    data = {
        "machine": machine,
        "versions": files.versions(),
        "results": [r._asdict() for r in rows],
    }
    files.save_json(options.out, data)
    print(f"Written to {options.out}")


if __name__ == "__main__":
    main()
