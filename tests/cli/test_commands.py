"""What the `scan-snap` commands say and write."""

import csv
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import jax
import numpy as np
import pytest
import xarray as xr
from command_line import PNG, TEXT, TINY, WORDS, read, tree
from typer.testing import CliRunner

import scan_snap_ode as sso
from scan_snap_ode import cli
from scan_snap_ode.cli import common

# --------------------------------------------------------------------------- help and version


@pytest.mark.parametrize("command", ["compare", "solve", "train", "classes"])
@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_every_command_explains_itself(command, flag):
    result = CliRunner().invoke(cli.app, [command, flag], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    for option in ("--out", "--precision", "--seed", "--context-length", "--queries"):
        assert option in result.output
    assert f"scan-snap {command}" in result.output  # an example
    assert tree() == ["text.txt"]


def test_the_command_names_its_commands(scan_snap):
    for arguments, code in ((("--help",), 0), ((), 2)):
        result = scan_snap(*arguments)
        assert result.code == code
        for command in ("compare", "solve", "train", "classes"):
            assert command in result.out
        assert result.err == ""


def test_version_and_module():
    answer = subprocess.run(
        [sys.executable, "-m", "scan_snap_ode", "--version"], capture_output=True, text=True
    )
    assert (answer.returncode, answer.stderr) == (0, "")
    assert answer.stdout == f"scan-snap {sso.__version__}\n"


# ------------------------------------------------------------------------ what commands write


def test_compare_writes_its_three_files(scan_snap, monkeypatch):
    """In a terminal: what happens is shown there, and is no part of the output."""
    monkeypatch.setattr(common, "in_terminal", lambda: True)
    result = scan_snap("compare", *TEXT, *TINY, "--momentum", 0.5)
    assert result.code == 0
    for text in ("Windows of text.txt", "0/5 [", "step/s", "class flow: done", "100.00%"):
        assert text in result.err
        assert text not in result.out
    last = "Written to scan-snap-out/compare-1: compare.png, summary.json, trajectories.nc"
    assert result.out.splitlines()[-1] == last
    assert "Error budget after 5 steps" in result.out.partition("Assumptions of the theory")[2]
    out = Path("scan-snap-out/compare-1")
    assert (out / "compare.png").read_bytes().startswith(PNG)
    summary = read(out / "summary.json")
    assert summary["complete"] is True
    asked = summary["setting"]
    assert (asked["command"], asked["source"], asked["steps"]) == ("compare", "text.txt", 5)
    assert (asked["momentum"], asked["seeds"], asked["precision"]) == (0.5, 2, "double")
    assert summary["versions"]["scan_snap_ode"] == sso.__version__
    assert len(summary["source"]["md5"]) == 32
    levels = ["SGD", "gradient descent", "optimizer flow", "window flow", "class flow",
              "adiabatic flow", "modified flow", "slow attention"]  # fmt: skip
    levels = [level for level in levels if level not in summary["left_out"]]
    assert [level["level"] for level in summary["levels"]] == levels
    assert "closed form" in summary["left_out"]
    assert [step["below"] for step in summary["budget"]] == [
        level for level in levels[1:] if level != "adiabatic flow"
    ]
    assumptions = {line["name"]: line for line in summary["assumptions"]}
    assert assumptions["slow attention"]["value"] == 1
    assert assumptions["decoder not too fast"]["value"] == 1  # 0.5, doubled by momentum
    assert assumptions["long sequences"]["met"] is False
    with xr.open_dataset(out / "trajectories.nc") as data:
        assert data.time.values.tolist() == [0, 1, 2, 3, 4, 5]
        assert data.level.values.tolist() == levels
    with xr.open_datatree(out / "trajectories.nc") as data:
        assert set(data.children) == {level.replace(" ", "_") for level in levels}
        assert data["SGD"].attrs["source"].endswith(summary["source"]["md5"])


@pytest.mark.parametrize(
    ("arguments", "method", "times"),
    [
        (
            ["solve", "syn-small", "--until", "10", "--records", "4"],
            "JointFlow",
            [0, 1, 10**0.5, 10],
        ),
        (
            ["solve", *TEXT, "--flow", "window", "--records", "2", "--until", "5"],
            "JointFlow",
            [0, 5],
        ),
        (
            ["solve", "single-common-token", "--flow", "slow", "--records", "4", "--until", "10"],
            "SlowAttentionFlow",
            [0, 1, 10**0.5, 10],
        ),
        (["train", "syn-small", *TINY, "--context-length", "9"], "SGD", [0, 1, 2, 3, 4, 5]),
        (["train", *TEXT, *TINY, "--init", "uniform"], "SGD", [0, 1, 2, 3, 4, 5]),
    ],
    ids=["solve", "solve a text", "solve slow attention", "train", "train on a text"],
)
def test_solve_and_train_write_a_trajectory(scan_snap, arguments, method, times):
    result = scan_snap(*arguments, "--out", "a/b", "--seed", 3)
    assert (result.code, result.err) == (0, "")
    last = "Written to a/b: summary.json, trajectory.nc, trajectory.png"
    assert result.out.splitlines()[-1] == last
    assert f"Trajectory of {method}" in result.out
    run = sso.load("a/b/trajectory.nc")
    assert run.decoder.dtype == np.float64
    assert np.allclose(run.ts, times)
    assert Path("a/b/trajectory.png").read_bytes().startswith(PNG)
    summary = read("a/b/summary.json")
    assert (summary["setting"]["command"], summary["setting"]["seed"]) == (arguments[0], 3)
    assert summary["end"]["t"] == run.ts[-1]
    assert summary["end"]["failed"] == 0
    if len(times) > 2:
        assert "attention         fastest at t = " in result.out
        assert np.all(np.array(summary["snap"]["fastest"]) <= run.ts[-1])
    assert np.allclose(summary["end"]["loss_nats"], run.loss[..., -1])
    with xr.open_dataset("a/b/trajectory.nc") as data:
        assert {"attention", "entropy", "loss"} <= set(data)


def test_classes_writes_a_table(scan_snap):
    result = scan_snap("classes", *TEXT, "--top", 2)
    assert (result.code, result.err) == (0, "")
    assert result.out.splitlines()[-1] == "Written to scan-snap-out/classes-1: classes.csv"
    with Path("scan-snap-out/classes-1/classes.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 4
    assert {row["query"] for row in rows} <= set(WORDS)
    assert all(len(row["top"].split()) == 2 for row in rows)
    assert all(row["query"] in result.out for row in rows)


def test_single_precision(scan_snap, single_precision, monkeypatch):
    result = scan_snap("solve", "syn-small", "--until", 5, "--records", 3, "--precision", "single")
    assert result.code == 0
    assert "float32" in result.out
    assert sso.load("scan-snap-out/solve-1/trajectory.nc").decoder.dtype == np.float32
    jax.config.update("jax_enable_x64", True)  # as JAX_ENABLE_X64=1 would
    common.RunOptions(precision=common.Precision.single).begin()
    assert not jax.config.jax_enable_x64  # pyright: ignore[reportAttributeAccessIssue]


def test_default_folders_are_numbered(scan_snap):
    """Without gaps, and never one that is there."""
    Path("scan-snap-out/classes-2").mkdir(parents=True)
    Path("scan-snap-out/classes-3").touch()
    for n in (1, 4):
        assert f"Written to scan-snap-out/classes-{n}: " in scan_snap("classes", *TEXT).out
    assert not list(Path("scan-snap-out/classes-2").iterdir())


def test_an_existing_folder_is_written_to(scan_snap):
    Path("mine").mkdir()
    Path("mine/notes.txt").touch()
    for _ in range(2):
        last = scan_snap("classes", *TEXT, "--out", "mine").out.splitlines()[-1]
        assert last == "Written to mine: classes.csv, notes.txt"


def test_text_is_read_and_written_under_a_c_locale(folder):
    """Names of files and words included."""
    Path("text.txt").rename("数学 naïve.txt")
    answer = subprocess.run(
        [sys.executable, "-m", "scan_snap_ode", "classes", "数学 naïve.txt", *TEXT[1:], "--queries",
         "naïve,数学", "--out", "Ergebnis ü"],
        env=os.environ | {"LC_ALL": "C", "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
    )  # fmt: skip
    out = answer.stdout.decode("utf-8")
    assert (answer.returncode, answer.stderr) == (0, b"")
    assert "Windows of 数学 naïve.txt" in out
    assert "Written to Ergebnis ü: classes.csv" in out
    assert "naïve,the" in Path("Ergebnis ü/classes.csv").read_text("utf-8")


def test_a_file_name_may_hold_bytes_that_are_no_text(scan_snap):
    name = os.fsdecode(b"caf\xe9.txt")
    Path("text.txt").rename(name)
    result = scan_snap("train", name, *TEXT[1:], *TINY, "--out", os.fsdecode(b"\xe9"))
    assert (result.code, result.err) == (0, "")
    folder = Path(os.fsdecode(b"\xe9"))
    assert read(folder / "summary.json")["setting"]["source"] == "caf?.txt"
    assert "windows of caf?.txt" in sso.load(folder / "trajectory.nc").classes.layout.origin


# ------------------------------------------------------------------------- in a terminal, or not


def test_progress_appears_on_a_pseudo_terminal():
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 80))  # in one of no lines tqdm shows none
    arguments = [sys.executable, "-m", "scan_snap_ode", "train", "syn-small", *TINY]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        seen = b""
        while b"step/s" not in seen and (chunk := _read(ours)):
            seen += chunk
        process.kill()
    os.close(ours)
    assert b"SequenceClasses" in seen
    assert b"0/5 [" in seen


def _read(terminal):
    try:
        return os.read(terminal, 4096)
    except OSError:  # Linux: the other side has closed
        return b""


@pytest.mark.parametrize("records", [2, 3])
def test_a_solve_ends_where_it_was_asked_to(scan_snap, records):
    assert (
        scan_snap("solve", "syn-small", "--until", 30, "--records", records, "--out", "a").code == 0
    )
    ts = sso.load("a/trajectory.nc").ts
    assert (len(ts), ts[0], ts[-1]) == (records, 0, 30)


def test_token_ids_need_no_option(scan_snap):
    """They hold no letters for the automatic choices to look for."""
    np.save("ids.npy", np.random.default_rng(0).integers(0, 9, 500))
    result = scan_snap("classes", "ids.npy", *TEXT[1:])
    assert (result.code, result.err) == (0, "")


@pytest.mark.parametrize(
    ("options", "levels"),
    [
        (["--levels", "class flow, slow attention"], ["class flow", "slow attention"]),
        (["--levels", "window flow,class flow"], 'levels must be two or more of ["SGD"'),
        (["--tolerance", "0"], "--tolerance must be positive and finite, was 0.0."),
    ],
    ids=["two", "not of classes", "tolerance"],
)
def test_compare_takes_synthetic_problems_and_levels(scan_snap, options, levels):
    result = scan_snap("compare", "single-common-token", *options, "--steps", "5")
    if isinstance(levels, list):
        assert result.code == 0
        assert [
            x["level"] for x in read("scan-snap-out/compare-1/summary.json")["levels"]
        ] == levels
    else:
        assert result.code == 2
        assert levels.replace('"', "'") in result.err
