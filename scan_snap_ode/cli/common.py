"""What the commands share: options, sources by name, the output folder, errors in one line."""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import typer

import scan_snap_ode as sso
from scan_snap_ode import files
from scan_snap_ode.streams.windows import Windows

R = TypeVar("R")


class Precision(StrEnum):
    """Floating-point type of the computation."""

    double = "double"
    single = "single"


class Tokenizer(StrEnum):
    """How a text becomes words."""

    auto = "auto"
    whitespace = "whitespace"
    words = "words"


SYNTHETIC = {"syn-small": sso.syn_small, "syn-medium": functools.partial(sso.syn_medium, 5)}

_TEXT = "Which text"
_MODEL = "Training"
_OUTPUT = "Output"

Text = Annotated[
    str,
    typer.Argument(
        help="A corpus (python-reference, wikitext-2, wikitext-103), a text file (plain, .gz, .xz "
        "or .bz2) or a .npy file of token ids."
    ),
]
Source = Annotated[
    str,
    typer.Argument(
        help="A corpus or file as for `scan-snap compare`, or one of the paper's synthetic "
        "problems: syn-small, syn-medium."
    ),
]
Split = Annotated[
    str, typer.Option(help="Part of WikiText: train, valid or test.", rich_help_panel=_TEXT)
]
Folder = Annotated[
    Path | None,
    typer.Option(
        help="Folder that holds WikiText; default: $SCAN_SNAP_DATA.", rich_help_panel=_TEXT
    ),
]
TokenizerOption = Annotated[
    Tokenizer,
    typer.Option(
        help="auto: whitespace for *.tokens files and WikiText, else lower-case words and "
        "punctuation.",
        rich_help_panel=_TEXT,
    ),
]
ContextLength = Annotated[
    int,
    typer.Option(help="T, tokens of a window, its query counted.", rich_help_panel=_TEXT),
]
VocabSize = Annotated[
    int,
    typer.Option(help="M: this many most frequent words stay, the rest become <unk>.",
                 rich_help_panel=_TEXT),
]  # fmt: skip
Queries = Annotated[
    str,
    typer.Option(
        help="Query words, separated by commas, or how many of the most frequent to take.",
        rich_help_panel=_TEXT,
    ),
]
NextTokens = Annotated[
    str | None,
    typer.Option(
        help="Next words, separated by commas, or how many of the most frequent; default: all.",
        rich_help_panel=_TEXT,
    ),
]
NumClasses = Annotated[
    int,
    typer.Option(
        "--classes", help="Keep this many most frequent (query, next) pairs.", rich_help_panel=_TEXT
    ),
]
WordsOnly = Annotated[
    bool,
    typer.Option(
        "--words-only/--all-tokens",
        help="Whether automatic choices take words of letters only.",
        rich_help_panel=_TEXT,
    ),
]
MaxWindows = Annotated[
    int | None,
    typer.Option(help="Draw at most this many windows.", rich_help_panel=_TEXT),
]
Decoder = Annotated[
    float, typer.Option(help="Learning rate η_Y of the decoder, per step.", rich_help_panel=_MODEL)
]
Attention = Annotated[
    float,
    typer.Option(help="Learning rate η_Z of the attention, per step.", rich_help_panel=_MODEL),
]
Steps = Annotated[int, typer.Option(help="Number of SGD steps.", rich_help_panel=_MODEL)]
BatchSize = Annotated[int, typer.Option(help="Windows in a batch.", rich_help_panel=_MODEL)]
Momentum = Annotated[
    float, typer.Option(help="Heavy-ball momentum, from 0 to below 1.", rich_help_panel=_MODEL)
]
Seeds = Annotated[
    int, typer.Option(help="SGD runs, with seeds SEED, SEED+1, …", rich_help_panel=_MODEL)
]
Seed = Annotated[int, typer.Option(help="First random seed.", rich_help_panel=_MODEL)]
Out = Annotated[
    Path | None,
    typer.Option(
        help="Folder to write to; default: ./scan-snap-out/COMMAND-N.", rich_help_panel=_OUTPUT
    ),
]
PrecisionOption = Annotated[
    Precision, typer.Option(help="Floating-point type.", rich_help_panel=_OUTPUT)
]


class WindowOptions(NamedTuple):
    """How windows are cut out of a text."""

    split: str = "train"
    folder: Path | None = None
    tokenizer: Tokenizer = Tokenizer.auto
    context_length: int = 64
    vocab_size: int = 400
    queries: str = "12"
    next_tokens: str | None = None
    num_classes: int = 72
    words_only: bool = True
    max_windows: int | None = None
    seed: int = 0


DEFAULT = WindowOptions()


def windows_of(text: str, options: WindowOptions) -> Windows:
    """The windows of a text, by its name or path."""
    stream = sso.load_corpus(
        text,
        split=options.split,
        tokenizer=None if options.tokenizer is Tokenizer.auto else str(options.tokenizer),
        folder=options.folder,
    )
    return sso.windows(
        stream,
        options.context_length,
        query=_choice(options.queries),
        next_token=None if options.next_tokens is None else _choice(options.next_tokens),
        num_classes=options.num_classes,
        vocab_size=options.vocab_size,
        words_only=options.words_only,
        max_windows=options.max_windows,
        seed=options.seed,
    )


def source_of(name: str, options: WindowOptions) -> sso.SequenceClasses | Windows:
    """Synthetic classes by name, else the windows of a text."""
    return SYNTHETIC[name]() if name in SYNTHETIC else windows_of(name, options)


def _choice(text: str) -> int | list[str]:
    """A number, or words separated by commas (a comma itself is written as two)."""
    if text.strip().isdigit():
        return int(text)
    words = [w.replace("\0", ",").strip() for w in text.replace(",,", "\0").split(",")]
    return [w for w in words if w]


def set_precision(precision: Precision) -> None:
    """Choose the floating-point type before anything is computed."""
    if precision is Precision.double:
        sso.enable_double_precision()


def output_folder(command: str, out: Path | None) -> Path:
    """The folder to write to, made where it is missing: `out`, or the next free one."""
    if out is not None:
        return files.writable_folder("--out", out)
    parent = files.writable_folder("--out", Path("scan-snap-out"))
    for n in itertools.count(1):
        try:
            (folder := parent / f"{command}-{n}").mkdir()
        except FileExistsError:
            continue
        return folder
    raise AssertionError("unreachable")


def in_terminal() -> bool:
    """Whether somebody watches: bars and notes go to the standard error of a terminal only."""
    return sys.stderr.isatty()


def note(text: str) -> None:
    """A line for whoever watches."""
    if in_terminal():
        typer.echo(text, err=True)


def written(folder: Path) -> None:
    """Name the folder, and what is in it."""
    names = ", ".join(sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")))
    typer.echo(f"\nWritten to {folder}: {names}")


def report(command: Callable[..., R]) -> Callable[..., R]:
    """Bad input ends in one line and exit code 2, a failed computation in one line and 1, ctrl-C
    in 130."""

    @functools.wraps(command)
    def reported(*args: Any, **kwargs: Any) -> R:
        try:
            return command(*args, **kwargs)
        except ValueError as error:
            typer.echo(f"scan-snap: error: {' '.join(str(error).split())}", err=True)
            raise typer.Exit(2) from None
        except (sso.SolveError, OSError, MemoryError) as error:
            text = " ".join(str(error).split()) or type(error).__name__
            typer.echo(f"scan-snap: failed: {text}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("scan-snap: interrupted", err=True)
            raise typer.Exit(130) from None

    return reported
