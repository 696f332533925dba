"""The `scan-snap` command stopped at any moment: what is kept, and how it goes on."""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
import xarray as xr
from command_line import TEXT, TINY, assert_same, read

import scan_snap_ode as sso
from scan_snap_ode import files
from scan_snap_ode.training import loop

# The command, slowed down to 20 ms a step; "ready" once `after` steps are done.
SLOW = """
import sys, time, pathlib
from scan_snap_ode.training import loop, train
from scan_snap_ode.cli import main
after, train._CHECKPOINT_EVERY = int(sys.argv.pop(1)), float(sys.argv.pop(1))
loop._BREATH, done, advance = 0, [], loop.Stepper.advance
def slow(*arguments):
    time.sleep(0.02)
    done.append(1)
    if len(done) == after:
        print("ready", flush=True)
    return advance(*arguments)
loop.Stepper.advance = slow
main()
"""


def stopped(arguments, signal_number, after, checkpoint_every=1000.0):
    """The command, stopped by a signal after so many steps: exit code, output, error output."""
    with subprocess.Popen(
        [sys.executable, "-c", SLOW, str(after), str(checkpoint_every), *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert "ready\n" in iter(process.stdout.readline, "")
        process.send_signal(signal_number)
        out, err = process.communicate()
    return SimpleNamespace(code=process.returncode, out=out, err=err)


LONG = ["train", *TEXT, "--steps", "200", "--seeds", "2", "--batch-size", "4", "--momentum", "0.5"]


@pytest.fixture(scope="module")
def uninterrupted():
    """The run of LONG, to be compared with; made by the first test that needs it."""
    return {}


def assert_goes_on(scan_snap, uninterrupted, out):
    """With --resume the run in `out` ends like one that nothing stopped."""
    if not uninterrupted:
        assert scan_snap(*LONG, "--out", "whole").code == 0
        uninterrupted["run"] = sso.load("whole/trajectory.nc")
        uninterrupted["end"] = read("whole/summary.json")["end"]
    resumed = scan_snap(*LONG, "--out", out, "--resume")
    assert (resumed.code, resumed.err) == (0, "")
    assert_same(sso.load(f"{out}/trajectory.nc"), uninterrupted["run"])
    assert read(f"{out}/summary.json")["end"] == uninterrupted["end"]


def test_ctrl_c_keeps_a_run_that_goes_on_exactly(scan_snap, uninterrupted):
    result = stopped([*LONG, "--out", "run"], signal.SIGINT, after=20)
    assert result.code == 130
    assert result.out.strip() == "Written to run: trajectory.nc"
    assert result.err.splitlines() == [
        "To go on, repeat the command with --resume and this --out.",
        "scan-snap: interrupted",
    ]
    partial = sso.load("run/trajectory.nc")
    assert 19 <= partial.stats["updates"][0] < 100
    assert_goes_on(scan_snap, uninterrupted, "run")


def test_a_killed_run_goes_on_exactly(scan_snap, uninterrupted):
    """SIGKILL, which nothing can catch: from the latest checkpoint."""
    result = stopped([*LONG, "--out", "run"], signal.SIGKILL, after=40, checkpoint_every=0.05)
    assert result.code == -signal.SIGKILL
    assert 0 < sso.load("run/trajectory.nc").stats["updates"][0] < 200
    assert_goes_on(scan_snap, uninterrupted, "run")


def test_ctrl_c_in_compare_keeps_the_finished_levels():
    arguments = ["compare", *TEXT, "--steps", "10", "--seeds", "2", "--batch-size", "4"]
    result = stopped(arguments, signal.SIGINT, after=15)
    assert (result.code, result.err) == (130, "scan-snap: interrupted\n")
    out = "scan-snap-out/compare-1"
    assert result.out.strip() == f"Written to {out}: summary.json, trajectories.nc"
    summary = read(f"{out}/summary.json")
    assert summary["complete"] is False
    assert [level["level"] for level in summary["levels"]] == ["SGD"]
    with xr.open_datatree(f"{out}/trajectories.nc") as groups:
        assert set(groups.children) == {"SGD", "unfinished"}
        assert groups["SGD"].sizes["time"] == 11
        assert 0 < groups["unfinished"].sizes["time_reached"] < 11
        assert groups["unfinished"].attrs["method"] == "gradient descent"


def test_ctrl_c_before_any_level_is_done(scan_snap, monkeypatch):
    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("scan_snap_ode.training.loop.Stepper.advance", interrupt)
    result = scan_snap("compare", *TEXT, *TINY)
    assert (result.code, result.err) == (130, "scan-snap: interrupted\n")
    summary = read("scan-snap-out/compare-1/summary.json")
    assert summary["complete"] is False
    assert "levels" not in summary
    with xr.open_datatree("scan-snap-out/compare-1/trajectories.nc") as groups:
        assert set(groups.children) == {"unfinished"}


@pytest.mark.parametrize("command", ["compare", "train"])
def test_ctrl_c_while_results_are_written(scan_snap, monkeypatch, command):
    """They are written to the end, then the command stops."""
    save_json = files.save_json

    def interrupted(path, data):
        os.kill(os.getpid(), signal.SIGINT)
        return save_json(path, data)

    monkeypatch.setattr(files, "save_json", interrupted)
    result = scan_snap(command, *TEXT, *TINY, "--out", "run")
    assert result.code == 130
    assert result.err.splitlines() == [
        "scan-snap: writing the results, then stopping",
        "scan-snap: interrupted",
    ]
    picture = {"compare": "compare.png", "train": "trajectory.png"}[command]
    assert os.path.getsize(f"run/{picture}") > 0
    assert read("run/summary.json")["setting"]["command"] == command


@pytest.mark.parametrize("command", ["train", "solve"])
def test_an_earlier_run_is_kept(scan_snap, command):
    assert scan_snap("train", *TEXT, *TINY, "--out", "run").code == 0
    before = sso.load("run/trajectory.nc")
    again = scan_snap(command, *TEXT, "--seed", "7", "--out", "run")
    assert again.code == 2
    assert "--out must not hold a run, run/trajectory.nc exists" in again.err
    assert_same(sso.load("run/trajectory.nc"), before)


def kept(result, done):
    """An interrupted training that is there to go on with."""
    assert result.code == 130
    assert result.err.splitlines()[-1] == "scan-snap: interrupted"
    assert sso.load("run/trajectory.nc").stats["updates"].tolist() == [done, done]


class PressedInACallback:
    """Ctrl-C while Python runs a callback, whose exceptions it drops."""

    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.01)


def test_ctrl_c_in_a_callback_is_not_lost(scan_snap, monkeypatch):
    advance = loop.Stepper.advance
    held = [PressedInACallback()]

    def slow(*arguments):
        held.clear()
        time.sleep(0.02)
        return advance(*arguments)

    monkeypatch.setattr(loop, "_BREATH", 0)
    monkeypatch.setattr(loop.Stepper, "advance", slow)
    result = scan_snap(*LONG, "--out", "run")
    done = int(sso.load("run/trajectory.nc").stats["updates"][0])
    assert done < 200
    kept(result, done)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_impatience_loses_nothing(scan_snap, monkeypatch, number):
    """Signals that come while an interrupted run is being saved."""
    save = sso.Trajectory.save

    def interrupt(*_):
        os.kill(os.getpid(), number)
        time.sleep(0.01)

    def interrupted(*arguments, **options):
        interrupt()
        interrupt()
        return save(*arguments, **options)

    monkeypatch.setattr(loop.Stepper, "advance", interrupt)
    monkeypatch.setattr(sso.Trajectory, "save", interrupted)
    result = scan_snap(*LONG, "--out", "run")
    assert result.err.count("stopping already") == 2
    kept(result, 0)
