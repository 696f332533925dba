"""`scan-snap figure`: the paper's figures, made, kept, resumed, refused."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import xarray as xr
from command_line import PNG, read, tree
from typer.testing import CliRunner

from scan_snap_ode import cli
from scan_snap_ode.training import language_model as lm

# Figure 10 of a text of eight words: 4 runs of a few hundred small steps.
TEXT = ["--corpus", "text.txt", "--seeds", "2", "--steps", "40", "--fast"]


@pytest.fixture(autouse=True)
def longer_text(folder):
    rng = np.random.default_rng(0)
    Path("text.txt").write_text(" ".join(rng.choice(list("abcdefgh"), 9000)), "utf-8")


def test_it_explains_itself():
    result = CliRunner().invoke(cli.app, ["figure", "-h"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    for part in ("--fast", "--resume", "--corpus", "3 to 12", "scan-snap figure all --fast"):
        assert part in result.output


def test_it_writes_four_files_a_figure_and_an_index(scan_snap):
    result = scan_snap("figure", "9", "3", "--fast")
    assert (result.code, result.err) == (0, "")
    lines = result.out.splitlines()
    assert lines[0].startswith("Figure 3: growth factor")
    assert "4 of 4 comparisons met" in result.out
    names = [f"figure_{n}.{k}" for n in (3, 9) for k in ("json", "nc", "pdf", "png")]
    out = Path("scan-snap-out/figure-1")
    assert sorted(p.name for p in out.iterdir()) == [*names, "index.md"]
    assert lines[-1] == f"Written to {out}: {', '.join([*names, 'index.md'])}"
    assert (out / "figure_9.png").read_bytes().startswith(PNG)
    record = read(out / "figure_3.json")
    assert record["setting"]["precision"] == "double"
    assert all(a["met"] for a in record["agreements"])
    with xr.open_dataset(out / "figure_3.nc") as data:
        assert data["chi"].dims == ("level", "decoder", "time")
    page = (out / "index.md").read_text("utf-8")
    assert page.index("## Figure 3") < page.index("## Figure 9")


def test_precision_is_a_choice(scan_snap):
    assert scan_snap("figure", "3", "--precision", "single", "--out", "o").code == 0
    record = read("o/figure_3.json")
    assert record["setting"]["precision"] == "single"
    assert all(a["met"] for a in record["agreements"])
    assert record["agreements"][0]["deviation"] > 1e-8


def test_figures_that_are_there_are_kept_or_refused(scan_snap):
    assert scan_snap("figure", "3", "--fast", "--out", "o").code == 0
    before = Path("o/figure_3.nc").read_bytes()
    result = scan_snap("figure", "3", "9", "--fast", "--out", "o")
    assert result.code == 2
    assert "--out must not hold figure 3, o/figure_3.json exists" in result.err
    assert "--resume" in result.err
    assert not Path("o/figure_9.json").exists()
    result = scan_snap("figure", "3", "9", "--fast", "--out", "o", "--resume")
    assert result.code == 0
    assert "Figure 3: kept" in result.out
    assert Path("o/figure_9.json").exists()
    assert Path("o/figure_3.nc").read_bytes() == before
    result = scan_snap("figure", "3", "--out", "o", "--resume", "--precision", "single")
    assert result.code == 2
    assert "has precision 'double' where 'single' is asked for" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["13"], "NUMBER must be one of 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, or all, was 13."),
        (["two"], "or all, was two."),
        (["3", "-1"], "No such option"),
        ([","], "or all, was empty."),
        ([], "Missing argument"),
        (["3", "--steps", "5"], "--steps must be left out for figure 3."),
        (["3", "8", "--seeds", "5"], "--seeds must be left out for figure 3, 8."),
        (["6", "--vocab-size", "50"], "--vocab-size must be left out for figure 6."),
        (["6", "--steps", "0"], "--steps must be an integer of at least 1, was 0."),
        (["10", "--seeds", "0"], "--seeds must be an integer of at least 1, was 0."),
        (["10", "--vocab-size", "1"], "--vocab-size must be an integer of at least 2, was 1."),
        (["6", "--seed", "-1"], "--seed must be an integer of at least 0, was -1."),
        (["3", "--resume"], "--resume needs --out"),
        (["7"], "wikitext-2 was not found: install 'scan-snap-ode[data]' to download it, or set"),
        (["7", "--corpus", "no.txt"], "file not found: no.txt"),
        (["3", "7", "--folder", "nowhere"], "must be a directory, was nowhere"),
        (["7", "--corpus", "short.txt"], "must hold"),
    ],
)
def test_bad_input_ends_in_one_line_and_leaves_nothing(arguments, message, scan_snap):
    Path("short.txt").write_text("a b c", "utf-8")
    before = tree()
    result = scan_snap("figure", *arguments)
    assert result.code == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert tree() == before


def assert_same_data(a, b):
    with xr.open_dataset(a) as one, xr.open_dataset(b) as other:
        xr.testing.assert_identical(one.load(), other.load())


def test_stopped_training_goes_on_to_the_same_numbers(scan_snap, monkeypatch):
    assert scan_snap("figure", "10", *TEXT, "--out", "whole").code == 0
    assert not Path("whole/checkpoints").exists()
    calls, step = [], lm.sgd_step

    def stopping(*given):
        calls.append(1)
        if len(calls) == 65:  # in the second run
            raise KeyboardInterrupt
        return step(*given)

    monkeypatch.setattr(lm, "sgd_step", stopping)
    result = scan_snap("figure", "10", *TEXT, "--out", "part")
    assert result.code == 130
    assert "repeat the command with --resume and this --out" in result.err
    monkeypatch.setattr(lm, "sgd_step", step)
    held = sorted(p.name for p in Path("part/checkpoints").iterdir())
    assert held == [f"figure_10-layers-1-rate-{rate}-seed-0.npz" for rate in (1, 3)]
    again = scan_snap("figure", "10", *TEXT, "--out", "part")
    assert again.code == 2
    assert "exists; name another folder, or go on with it by --resume" in again.err
    other = scan_snap("figure", "10", *TEXT, "--vocab-size", "5", "--out", "part", "--resume")
    assert other.code == 2
    assert "has tokens" in other.err or "has vocab_size" in other.err
    assert scan_snap("figure", "10", *TEXT, "--out", "part", "--resume").code == 0
    assert not Path("part/checkpoints").exists()
    assert_same_data("whole/figure_10.nc", "part/figure_10.nc")
    assert read("whole/figure_10.json")["agreements"] == read("part/figure_10.json")["agreements"]


SLOW = """
import sys, time
from scan_snap_ode.training import language_model as lm
from scan_snap_ode.cli import main
lm._CHECKPOINT_EVERY, step = 0, lm.sgd_step
def slow(*given):
    time.sleep(0.02)
    return step(*given)
lm.sgd_step = slow
main()
"""


def test_killed_training_goes_on_to_the_same_numbers(scan_snap):
    """SIGKILL, at a moment of its own, with a checkpoint at every step."""
    assert scan_snap("figure", "10", *TEXT, "--out", "whole").code == 0
    command = [sys.executable, "-c", SLOW, "figure", "10", *TEXT, "--out", "part"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=dict(os.environ)) as process:
        path = Path("part/checkpoints/figure_10-layers-1-rate-3-seed-0.npz")
        deadline = time.monotonic() + 120
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    with np.load(path) as held:
        assert json.loads(str(held["about"]))["step"] < 40
    assert scan_snap("figure", "10", *TEXT, "--out", "part", "--resume").code == 0
    assert_same_data("whole/figure_10.nc", "part/figure_10.nc")


def test_the_script_makes_an_index_of_what_is_asked(tmp_path):
    script = Path(__file__).parents[2] / "scripts" / "reproduce_paper.py"
    bare = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert bare.returncode == 1
    assert "python scripts/reproduce_paper.py" in bare.stderr
    refused = subprocess.run(
        [sys.executable, script, "out", "--steps", "0"], capture_output=True, text=True, check=False
    )
    assert refused.returncode == 2
    assert "--steps must be an integer of at least 1" in refused.stderr
