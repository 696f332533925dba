"""What the commands share: options, sources by name, the output folder, errors in one line."""

from __future__ import annotations

import functools
import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import jax
import numpy as np
import typer
from jax.errors import JaxRuntimeError

import scan_snap_ode as sso
from scan_snap_ode import checks, files
from scan_snap_ode.cli.interrupts import finishing, say
from scan_snap_ode.streams.windows import Windows


class Precision(StrEnum):
    """Floating-point type of the computation."""

    double = "double"
    single = "single"


class Tokenizer(StrEnum):
    """How a text becomes words."""

    auto = "auto"
    whitespace = "whitespace"
    words = "words"


SYNTHETIC = {
    "syn-small": sso.syn_small,
    "syn-medium": functools.partial(sso.syn_medium, 5),
    "single-common-token": functools.partial(sso.single_common_token, 10, 1000, 0.1, 10),
}

_TEXT, _MODEL, _OUTPUT = "Which text", "Training", "Output"


def _option(panel: str, help: str, *names: str) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel)


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
        help="A corpus (python-reference, wikitext-2, wikitext-103), a text file (plain, .gz, .xz "
        "or .bz2), a .npy file of token ids, or a synthetic problem: syn-small, syn-medium, "
        "single-common-token."
    ),
]


@dataclass(frozen=True)
class TextOptions:
    """How windows are cut out of a text."""

    split: Annotated[str, _option(_TEXT, "Part of WikiText: train, valid or test.")] = "train"
    folder: Annotated[
        Path | None, _option(_TEXT, "Folder that holds WikiText; default: $SCAN_SNAP_DATA.")
    ] = None
    tokenizer: Annotated[
        Tokenizer,
        _option(
            _TEXT,
            "auto: whitespace for WikiText and *.tokens files, else lower-case words and "
            "punctuation.",
        ),
    ] = Tokenizer.auto
    context_length: Annotated[
        int | None,
        _option(_TEXT, "T, tokens of a window, its query counted; default: 64, synthetic 128."),
    ] = None
    vocab_size: Annotated[
        int, _option(_TEXT, "M: the most frequent words that stay; the rest become <unk>.")
    ] = 300
    queries: Annotated[
        str,
        _option(_TEXT, "Query words, separated by commas, or how many of the most frequent."),
    ] = "16"
    next_tokens: Annotated[
        str, _option(_TEXT, "Next words, or how many of the most frequent after the queries.")
    ] = "24"
    classes: Annotated[int, _option(_TEXT, "Keep this many most frequent (query, next) pairs.")] = (
        96
    )
    words_only: Annotated[
        bool,
        _option(
            _TEXT,
            "Whether automatic choices take words of letters only, where there are any.",
            "--words-only/--all-tokens",
        ),
    ] = True
    max_windows: Annotated[int | None, _option(_TEXT, "Draw at most this many windows.")] = None

    def __post_init__(self) -> None:
        if self.context_length is not None:
            checks.integer("--context-length", self.context_length, 2)
        checks.integer("--vocab-size", self.vocab_size, 2)
        checks.integer("--classes", self.classes, 1)
        if self.max_windows is not None:
            checks.integer("--max-windows", self.max_windows, 1)

    def windows(self, text: str, seed: int) -> Windows:
        """The windows of a text, by its name or path."""
        automatic = self.tokenizer is Tokenizer.auto
        stream = sso.load_corpus(
            text,
            split=self.split,
            tokenizer=None if automatic else str(self.tokenizer),
            folder=self.folder,
        )
        return sso.windows(
            stream,
            64 if self.context_length is None else self.context_length,
            query=_choice(self.queries),
            next_token=_choice(self.next_tokens),
            num_classes=self.classes,
            vocab_size=self.vocab_size,
            # Token ids have no letters to choose by.
            words_only=self.words_only and any(map(str.isalpha, stream.vocabulary)),
            max_windows=self.max_windows,
            seed=seed,
        )

    def source(self, name: str, seed: int) -> sso.SequenceClasses | Windows:
        """Synthetic classes by their name, else the windows of a text."""
        if name in SYNTHETIC:
            return SYNTHETIC[name]()
        if name.startswith("syn-") and not os.path.exists(name):
            raise ValueError(f"synthetic problems are {', '.join(SYNTHETIC)}, was {name}.")
        return self.windows(name, seed)


@dataclass(frozen=True)
class RateOptions:
    """The two learning rates."""

    decoder: Annotated[float, _option(_MODEL, "Learning rate η_Y of the decoder, per step.")] = 0.5
    attention: Annotated[
        float, _option(_MODEL, "Learning rate η_Z of the attention, per step.")
    ] = 0.5

    def __post_init__(self) -> None:
        checks.positive("--decoder", self.decoder)
        checks.positive("--attention", self.attention)

    @property
    def rates(self) -> sso.LearningRates:
        """As the library takes them."""
        return sso.LearningRates(self.decoder, self.attention)


@dataclass(frozen=True)
class TrainingOptions:
    """SGD."""

    steps: Annotated[int, _option(_MODEL, "Number of SGD steps.")] = 1000
    batch_size: Annotated[int, _option(_MODEL, "Windows in a batch.")] = 32
    momentum: Annotated[float, _option(_MODEL, "Heavy-ball momentum, from 0 to below 1.")] = 0.0
    seeds: Annotated[int, _option(_MODEL, "Number of runs, with seeds SEED, SEED+1, …")] = 5

    def __post_init__(self) -> None:
        checks.integer("--steps", self.steps, 1)
        checks.integer("--batch-size", self.batch_size, 1)
        checks.within("--momentum", self.momentum, 0, 1)
        checks.integer("--seeds", self.seeds, 1)


@dataclass(frozen=True)
class RunOptions:
    """How any command runs, and where its results go."""

    seed: Annotated[int, _option(_OUTPUT, "First random seed.")] = 0
    out: Annotated[
        Path | None, _option(_OUTPUT, "Folder to write to; default: ./scan-snap-out/COMMAND-N.")
    ] = None
    precision: Annotated[Precision, _option(_OUTPUT, "Floating-point type.")] = Precision.double

    def __post_init__(self) -> None:
        checks.seed("--seed", self.seed)

    def begin(self) -> None:
        """Choose the floating-point type, before anything is computed."""
        jax.config.update("jax_enable_x64", self.precision is Precision.double)


def command(function: Callable[..., None]) -> Callable[..., None]:
    """A function whose parameters may be groups of options, as one that Typer understands.

    Bad input ends in one line and exit code 2, a failed computation in one line and 1, ctrl-C
    in 130. Groups check themselves when they are built, before any work begins.
    """
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name in groups:
            parameters.extend(_parameters_of(groups[name]))
        else:
            parameters.append(parameter.replace(annotation=hints[name]))

    @functools.wraps(function)
    def reported(**given: Any) -> None:
        try:
            built = {
                name: kind(**{f.name: given.pop(f.name) for f in fields(kind)})
                for name, kind in groups.items()
            }
            function(**given, **built)
        except ValueError as error:
            code, text = 2, f"error: {error}"
        except (sso.SolveError, JaxRuntimeError, OSError, MemoryError) as error:
            code, text = 1, f"failed: {str(error) or type(error).__name__}"
        except KeyboardInterrupt:
            code, text = 130, "interrupted"
        else:
            return
        say(text)
        raise typer.Exit(code)

    reported.__annotations__ = {p.name: p.annotation for p in parameters}
    reported.__signature__ = inspect.Signature(parameters)  # pyright: ignore[reportAttributeAccessIssue]
    return reported


def _parameters_of(group: Any) -> list[inspect.Parameter]:
    hints = get_type_hints(group, include_extras=True)
    return [
        inspect.Parameter(
            f.name, inspect.Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]
        )
        for f in fields(group)
    ]


def _choice(text: str) -> int | list[str]:
    """A number, or words separated by commas (a comma itself is written as two)."""
    if text.strip().isdecimal():
        return int(text)
    return names(text)


def names(text: str) -> list[str]:
    """What commas separate (a comma itself is written as two)."""
    parts = [w.replace("\0", ",").strip() for w in text.replace(",,", "\0").split(",")]
    return [w for w in parts if w]


@contextmanager
def output_folder(command: str, out: Path | None) -> Iterator[Path]:
    """The folder to write to, `out` or the next free one; made where it is missing, and removed
    again where nothing came to be written."""
    wanted = Path("scan-snap-out") if out is None else out
    missing = [path for path in (wanted, *wanted.parents) if not os.path.exists(path)]
    try:
        folder = files.writable_folder("--out", wanted)
        if out is None:
            folder = _next_free(folder, command)
            missing.insert(0, folder)
        yield folder
    finally:
        with suppress(OSError):  # not empty
            for path in missing:
                path.rmdir()


def _next_free(parent: Path, command: str) -> Path:
    for n in itertools.count(1):
        with suppress(FileExistsError):
            (folder := parent / f"{command}-{n}").mkdir()
            return folder
    raise AssertionError("unreachable")


def refuse_a_run_in(folder: Path, remedy: str = "") -> None:
    """ValueError where results would replace an earlier run, which may have taken hours."""
    file = folder / "trajectory.nc"
    if file.exists():
        raise ValueError(f"--out must not hold a run, {file} exists; name another folder{remedy}.")


def in_terminal() -> bool:
    """Whether somebody watches: bars and notes go to the standard error of a terminal only."""
    return sys.stderr.isatty()


def note(text: str) -> None:
    """A line for whoever watches."""
    if in_terminal():
        typer.echo(text, err=True)


def record_times(steps: int, count: int = 40) -> list[int]:
    """0 and about `count` whole numbers of steps, evenly on a log axis up to `steps`."""
    return [0, *np.unique(np.round(np.geomspace(1, steps, count)).astype(int)).tolist()]


def setting(*groups: Any, **facts: Any) -> dict[str, Any]:
    """What a run was asked for, and the versions that answered: the head of every summary.json."""
    asked = {f.name: getattr(g, f.name) for g in groups for f in fields(g)}
    return {"setting": facts | asked, "versions": files.versions()}


def written(folder: Path) -> None:
    """Name the folder, and what is in it."""
    names = ", ".join(sorted(p.name for p in folder.iterdir() if not p.name.startswith(".")))
    typer.echo(f"\nWritten to {folder}: {names}")


def _snap(run: sso.Trajectory) -> dict[str, Any]:
    """When attention moved fastest and froze, beside what theory says of equal classes."""
    if len(run.ts) < 3:
        return {}
    classes = run.measured_classes
    measured = sso.snap_times(run)._asdict()
    if classes.vocab_size < 4:
        return measured
    try:
        rates = run.rates.with_momentum(run.about.get("momentum", 0.0))
    except ValueError:  # beyond floating point
        return measured
    predicted = sso.transition_times(rates, classes.vocab_size, classes.num_classes)
    return measured | {"t0_prime": predicted.t0_prime, "t0": predicted.t0}


def write_trajectory(run: sso.Trajectory, folder: Path, setting: dict[str, Any]) -> None:
    """Print a run, and write its data, its picture and its end."""
    with finishing():
        _write_trajectory(run, folder, setting)


def _write_trajectory(run: sso.Trajectory, folder: Path, setting: dict[str, Any]) -> None:
    from scan_snap_ode.figures import style

    run.save(folder / "trajectory.nc")
    measured = run.to_xarray(("entropy", "loss"))
    weights = np.asarray(run.measured_classes.weights)
    entropy = np.asarray(measured["entropy"].values) @ weights
    end = {
        "t": float(run.ts[-1]),
        "entropy_nats": entropy[..., -1],
        "loss_nats": measured["loss"].values[..., -1],
        "failed": int(np.sum(run.failed)),
    }
    snap = _snap(run)
    files.save_json(folder / "summary.json", setting | {"end": end, "snap": snap})
    style.save(run.plot(), folder / "trajectory.png")
    typer.echo(run)
    typer.echo(
        f"  entropy of c      {entropy[..., 0].mean():.4f} → {entropy[..., -1].mean():.4f} nats\n"
        f"  loss              {measured['loss'].values[..., 0].mean():.4f} → "
        f"{end['loss_nats'].mean():.4f} nats"
    )
    if snap:
        fastest, settled = (float(np.median(snap[k])) for k in ("fastest", "settled"))
        frozen = f"frozen from t = {settled:.4g} on" if np.isfinite(settled) else "not yet frozen"
        typer.echo(f"  attention         fastest at t = {fastest:.4g}, {frozen}")
    if "t0" in snap:
        early, late = (float(np.median(snap[k])) for k in ("t0_prime", "t0"))
        typer.echo(f"  predicted         t₀′ = {early:.4g}, t₀ = {late:.4g}")
    written(folder)
