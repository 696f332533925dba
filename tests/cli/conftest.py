"""Where tests of the command run, and how."""

import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
from command_line import WORDS

from scan_snap_ode import cli


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """An empty working directory but for a text; no WikiText; JAX as it was at the end."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCAN_SNAP_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    rng = np.random.default_rng(0)
    odds = 1 / np.arange(1, len(WORDS) + 1)
    lines = rng.choice(WORDS, (60, 8), p=odds / odds.sum())
    Path("text.txt").write_text("\n".join(map(" ".join, lines)), "utf-8")
    yield tmp_path
    jax.config.update("jax_enable_x64", True)


@pytest.fixture
def scan_snap(monkeypatch, capsys):
    """Runs `scan-snap ARGUMENTS` in this process: its exit code, output and error output."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["scan-snap", *map(str, arguments)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as exited:
            cli.main()
        out, err = capsys.readouterr()
        return SimpleNamespace(code=exited.value.code or 0, out=out, err=err)

    return run
