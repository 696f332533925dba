"""What the `scan-snap` command refuses, and how it fails: in one line, with nothing left behind."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from command_line import TEXT, TINY, read, tree
from jax.errors import JaxRuntimeError

import scan_snap_ode as sso

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
    ("solve syn-large",
     "synthetic problems are syn-small, syn-medium, single-common-token, was syn-large."),
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
        (["--init", "uniform"], "--init must be that of the run, zeros, was uniform."),
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


_FULL_DISK = """
import resource, sys
from scan_snap_ode.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))
sys.argv[0] = "scan-snap"
main()
"""


def test_a_full_disk_is_said_in_one_line():
    """HDF5 itself would end the process."""
    arguments = ["train", *TEXT, *TINY, "--out", "run"]
    answer = subprocess.run(
        [sys.executable, "-c", _FULL_DISK, *arguments], capture_output=True, text=True
    )
    assert answer.returncode == 1
    assert len(answer.stderr.splitlines()) == 1
    assert answer.stderr.startswith("scan-snap: failed: [Errno 27] File too large: ")
    assert tree() == ["text.txt"]
