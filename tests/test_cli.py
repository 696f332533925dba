"""The `scan-snap` command: what it writes, what it refuses, how it stops and goes on."""

import csv
import json
import os
import pty
import shlex
import signal
import subprocess
import sys
import termios
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest
import xarray as xr
from jax.errors import JaxRuntimeError
from typer.testing import CliRunner

import scan_snap_ode as sso
from scan_snap_ode import cli, files
from scan_snap_ode.cli import common

WORDS = ["the", "of", "naïve", "数学", "cat", "dog", "sat", "mat"]
PNG = b"\x89PNG\r\n\x1a\n"
# Small windows of the text below, a few classes.
TEXT = shlex.split("text.txt --context-length 6 --queries 2 --next-tokens 3 --classes 4")
TINY = shlex.split("--steps 5 --seeds 2 --batch-size 4")


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


def tree():
    """Every path below the working directory."""
    return sorted(str(path) for path in Path().rglob("*"))


def read(path):
    return json.loads(Path(path).read_text("utf-8"))


def assert_same(a, b):
    """Equal runs, to the last bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert np.array_equal(x, y, equal_nan=True)


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
    assert "Error budget after 5 steps" in result.out
    out = Path("scan-snap-out/compare-1")
    assert (out / "compare.png").read_bytes().startswith(PNG)
    summary = read(out / "summary.json")
    assert summary["complete"] is True
    asked = summary["setting"]
    assert (asked["command"], asked["text"], asked["steps"]) == ("compare", "text.txt", 5)
    assert (asked["momentum"], asked["seeds"], asked["precision"]) == (0.5, 2, "double")
    assert summary["versions"]["scan_snap_ode"] == sso.__version__
    assert len(summary["source"]["md5"]) == 32
    levels = ["SGD", "gradient descent", "window flow", "class flow"]
    assert [level["level"] for level in summary["levels"]] == levels
    assert len(summary["budget"]) == 3
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
            [0, 0.5],
        ),
        (["train", "syn-small", *TINY, "--context-length", "9"], "SGD", [0, 1, 2, 3, 4, 5]),
        (["train", *TEXT, *TINY, "--init", "uniform"], "SGD", [0, 1, 2, 3, 4, 5]),
    ],
    ids=["solve", "solve a text", "train", "train on a text"],
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


# ------------------------------------------------------------------------------------ bad input


# Options that say no before any text is read.
EARLY = [
    ("compare --steps 0", "--steps must be an integer of at least 1, was 0."),
    ("compare --steps -3", "--steps must be an integer of at least 1, was -3."),
    ("train --steps 99999999999",
     "--steps must be an integer of at most 2147483647, was 999999999"),
    ("compare --seeds 0", "--seeds must be an integer of at least 1, was 0."),
    ("compare --batch-size 0", "--batch-size must be an integer of at least 1, was 0."),
    ("compare --momentum 1.5", "--momentum must lie in [0, 1), was 1.5."),
    ("compare --momentum nan", "--momentum must lie in [0, 1), was nan."),
    ("train --momentum -0.1", "--momentum must lie in [0, 1), was -0.1."),
    ("compare --decoder nan", "--decoder must be positive and finite, was nan."),
    ("compare --decoder 0", "--decoder must be positive and finite, was 0.0."),
    ("solve --attention -1", "--attention must be positive and finite, was -1.0."),
    ("solve --attention inf", "--attention must be positive and finite, was inf."),
    ("compare --context-length 1", "--context-length must be an integer of at least 2, was 1."),
    ("train syn-small --context-length 1",
     "--context-length must be an integer of at least 2, was "),
    ("compare --vocab-size 1", "--vocab-size must be an integer of at least 2, was 1."),
    ("compare --classes 0", "--classes must be an integer of at least 1, was 0."),
    ("compare --max-windows 0", "--max-windows must be an integer of at least 1, was 0."),
    ("compare --seed -1", "--seed must be an integer of at least 0, was -1."),
    ("compare --seed 4294967296",
     "--seed must be an integer of at most 4294967295, was 4294967296."),
    ("solve --until 0", "--until must be positive and finite, was 0.0."),
    ("solve --until nan", "--until must be positive and finite, was nan."),
    ("solve --records 1", "--records must be an integer of at least 2, was 1."),
    ("solve --rtol 0", "--rtol must be positive and finite, was 0.0."),
    ("classes --top 0", "--top must be an integer of at least 1, was 0."),
    ("train --resume", "--resume needs --out, the folder of the run to go on with."),
    ("solve syn-large", "synthetic problems are syn-small, syn-medium, was syn-large."),
    ("solve syn-small --flow window", "--flow window needs a text, syn-small is synthetic."),
    # what Typer says
    ("nope", "No such command 'nope'."),
    ("compare --nope", "No such option: --nope"),
    ("compare --steps", "Option '--steps' requires an argument."),
    ("compare --steps ten", "Invalid value for '--steps': "),
    ("compare --tokenizer bpe", "Invalid value for '--tokenizer': "),
    ("solve --flow linear", "Invalid value for '--flow': "),
    ("train --optimizer lion", "Invalid value for '--optimizer': "),
    ("train --precision half", "Invalid value for '--precision': "),
    ("compare one two", "Got unexpected extra argument"),
    ("--nope", "No such option: --nope"),
]  # fmt: skip

# What a text, a folder or a file turns out to be.
LATE = [
    ("compare nope",
     "name_or_path must be one of python-reference, wikitext-2, wikitext-103 or a file; file"
     " not found: nope."),
    ("compare .", "name_or_path must be a file, was a directory: ."),
    ("classes binary.txt", "binary.txt must be text, was binary: NUL byte at 3 (line 1)."),
    ("classes latin.txt", "latin.txt must be UTF-8: invalid continuation byte at byte 1 (line 1)."),
    ("solve empty.txt", "empty.txt must hold text, was empty (no tokens)."),
    ("solve broken.txt.gz", "broken.txt.gz is truncated or corrupt: Not a gzipped file"),
    ("solve floats.npy", "floats.npy must be 1-D integers, was float64 of shape (3,)."),
    ("train wikitext-2",
     "wikitext-2 was not found: install 'scan-snap-ode[data]' to download it, or"),
    ("train wikitext-2 --folder nope",
     "folder (or $SCAN_SNAP_DATA) must be a directory, was nope."),
    ("train wikitext-2 --split dev", "split must be one of 'train', 'valid', 'test', was 'dev'."),
    ("train text.txt --split test",
     "split must be 'train' for text.txt, which is one text, was 'tes"),
    ("compare text.txt --context-length 999",
     "stream must hold context_length + 1 = 1000 tokens or more, text.txt holds 480."),
    ("compare text.txt --queries cog", "query 'cog' is not a word of text.txt; some are 'dog'."),
    ("compare text.txt --queries 0", "query must be an integer of at least 1, was 0."),
    ("compare text.txt --queries ,",
     "query must be an integer of at least 1, a word, several words"),
    ("compare text.txt --queries <unk>", "query must not be <unk>, which stands for many words."),
    ("compare text.txt --queries mat --vocab-size 3",
     "query 'mat' is not among the 3 words that vocab_size keeps."),
    ("compare text.txt --next-tokens -1", "next_token '-1' is not a word of text.txt; some are "),
    ("compare pairs.txt --context-length 2 --queries a --next-tokens c --all-tokens",
     "no windows of 2 tokens match: pairs.txt has 8 tokens, the queries found are 'a' (2"
     " positions), and none of next_token follows them."),
    ("train syn-small --optimizer adam --momentum 0.9",
     'momentum must be 0 unless optimizer is "sgd", was 0.9.'),
    ("train syn-small --seed 4294967295 --seeds 2",
     "seed must be an integer of at most 4294967294, was 4294967295."),
    ("train syn-small --resume --out new/run",
     "path must be a saved Trajectory, new/run/trajectory.nc was not found."),
    ("train syn-small --resume --out half",
     "path must be a saved Trajectory, half/trajectory.nc was not: "),
    ("classes text.txt --out empty.txt",
     "--out must be a folder to write to, was empty.txt: File exists."),
    ("solve syn-small --out empty.txt/run",
     "--out must be a folder to write to, was empty.txt/run: Not a directory."),
]  # fmt: skip


def assert_refused(result, message):
    """Exit code 2, and one line on standard error alone."""
    assert result.err.count("\n") == 1
    assert result.err.startswith(f"scan-snap: error: {message}")
    assert (result.code, result.out) == (2, "")


@pytest.mark.parametrize(("line", "message"), EARLY, ids=[line for line, _ in EARLY])
def test_options_are_checked_before_any_work(scan_snap, monkeypatch, line, message):
    monkeypatch.setattr(sso, "load_corpus", lambda *_, **__: pytest.fail("read a text"))
    monkeypatch.setattr(sso, "integrate", lambda *_, **__: pytest.fail("integrated"))
    monkeypatch.setattr(sso, "train", lambda *_, **__: pytest.fail("trained"))
    assert_refused(scan_snap(*line.split()), message)
    assert tree() == ["text.txt"]


@pytest.mark.parametrize(("line", "message"), LATE, ids=[line for line, _ in LATE])
def test_bad_input_is_said_in_one_line(scan_snap, line, message):
    Path("binary.txt").write_bytes(b"abc\0def")
    Path("latin.txt").write_bytes("déjà".encode("latin-1"))
    Path("empty.txt").touch()
    Path("broken.txt.gz").write_bytes(b"no gzip")
    Path("pairs.txt").write_text("a b a b a b c b")
    np.save("floats.npy", np.ones(3))
    Path("half").mkdir()
    Path("half/trajectory.nc").write_bytes(b"\x89HDF\r\n\x1a\n")
    before = tree()
    assert_refused(scan_snap(*line.split()), message)
    assert tree() == before


@pytest.mark.parametrize("out", [None, "mine", "deep/er"])
def test_a_folder_that_cannot_be_written_to(scan_snap, monkeypatch, out):
    """As root nothing is read-only, so the refusal is staged."""

    def refuse(**_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.TemporaryFile", refuse)
    arguments = [] if out is None else ["--out", out]
    assert_refused(
        scan_snap("classes", *TEXT, *arguments),
        f"--out must be a folder to write to, was {out or 'scan-snap-out'}: Permission denied.",
    )
    assert tree() == ["text.txt"]


def test_a_run_goes_on_only_as_it_began(scan_snap):
    base = ["train", "syn-small", *TINY, "--context-length", 9, "--out", "run"]
    assert scan_snap(*base).code == 0
    before = Path("run/trajectory.nc").read_bytes()
    differences = [
        (["--momentum", 0.5], "init must be a Trajectory of the same run, differs in momentum."),
        (["--seed", 1], "init must be a Trajectory of the same run, differs in seed."),
        (["--decoder", 9], "init must be a Trajectory of the same run, differs in rates."),
        (["--steps", 4], "steps must be at least the 5 updates that init has had, was 4."),
    ]
    for options, message in differences:
        assert_refused(scan_snap(*base, "--resume", *options), message)
    assert Path("run/trajectory.nc").read_bytes() == before
    again = scan_snap(*base, "--resume")  # nothing is left to do but the files
    assert again.code == 0


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (sso.SolveError("The solve failed\nat t = 1."), 1, "failed: The solve failed at t = 1."),
        (JaxRuntimeError("RESOURCE_EXHAUSTED:\n 9GB"), 1, "failed: RESOURCE_EXHAUSTED: 9GB"),
        (MemoryError(), 1, "failed: MemoryError"),
        (OSError(28, "No space left on device"), 1, "failed: [Errno 28] No space left on device"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_failures_end_in_one_line_too(scan_snap, monkeypatch, error, code, line):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(sso, "integrate", fail)
    result = scan_snap("solve", "syn-small", "--out", "a/b")
    assert (result.code, result.out, result.err) == (code, "", f"scan-snap: {line}\n")
    assert tree() == ["text.txt"]


def test_a_diverged_run_is_written_and_counted(scan_snap):
    options = ["--decoder", "1e308", "--momentum", 0.99, "--steps", 20]
    result = scan_snap("train", "syn-small", *TINY, *options)
    assert result.code == 0
    assert "2 of 2 runs failed" in result.out
    end = read("scan-snap-out/train-1/summary.json")["end"]
    assert (end["failed"], end["loss_nats"]) == (2, [None, None])


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


# ------------------------------------------------------------------------- stopping, going on

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
        assert process.stdout.readline() == "ready\n"
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


def test_train_keeps_an_earlier_run(scan_snap):
    assert scan_snap("train", *TEXT, *TINY, "--out", "run").code == 0
    before = sso.load("run/trajectory.nc")
    again = scan_snap("train", *TEXT, *TINY, "--seed", "7", "--out", "run")
    assert again.code == 2
    assert "--out must not hold a run, run/trajectory.nc exists" in again.err
    assert_same(sso.load("run/trajectory.nc"), before)
