"""Training a `Transformer` on a text by plain SGD, step by step, resumable."""

from __future__ import annotations

import json
import time
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray
from tqdm import tqdm

from scan_snap_ode import checks, files
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.training.transformer import Transformer

# Apart from the draws of initial values, which may have the same seed.
_DROPOUT = 2**32 - 2
_CHECKPOINT_EVERY = 60.0  # seconds; one takes a quarter of a second
Measures = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class LanguageModelRun:
    """What training a Transformer left.

    Attributes:
        model: as it ended.
        recorded_at: (R,) after how many updates it was measured.
        measures: what was measured, by name, each (R, ...).
        loss: (steps,) of each batch before its update, in nats, with dropout.
    """

    model: Transformer
    recorded_at: NDArray[np.int64]
    measures: Measures
    loss: NDArray[np.float32]


def stream_columns(ids: Any, batch_size: int) -> NDArray[np.int32]:
    """(n, B): a text cut into B columns of equal length, which are read down side by side.

    Raises:
        ValueError: when the text is shorter than two rows.
    """
    ids = checks.token_ids("ids", ids, 1)
    rows = len(ids) // checks.integer("batch_size", batch_size, 1)
    if rows < 2:
        raise ValueError(f"ids must hold two tokens a column, {2 * batch_size}, held {len(ids)}.")
    return np.ascontiguousarray(ids[: rows * batch_size].reshape(batch_size, rows).T)


def batch_of(
    columns: NDArray[np.int32], step: int, context_length: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """Tokens and the ones that follow them, (B, T), of update number `step` (the first is 0): T
    rows of the columns further each time, and from the top again after the last whole T."""
    windows = (len(columns) - 1) // context_length
    start = step % windows * context_length
    part = columns[start : start + context_length + 1].T
    return part[:, :-1], part[:, 1:]


def parameter_rates(model: Transformer, rates: LearningRates, other: float) -> Transformer:
    """A learning rate for every parameter: η_Y for the decoder, η_Z for the queries and keys of all
    layers, `other` for the rest. 0 freezes a parameter."""

    def maps(model: Transformer) -> Any:
        return [part for layer in model.layers for part in (layer.query, layer.key)]

    def of(rate: Any, parts: Any) -> Any:
        return jax.tree.map(lambda p: jnp.asarray(rate, p.dtype), parts)

    each = of(other, model)
    each = eqx.tree_at(lambda m: m.decoder, each, of(rates.decoder, model.decoder))
    return eqx.tree_at(maps, each, of(rates.attention, maps(model)))


@eqx.filter_jit(donate="all-except-first")
def sgd_step(given: tuple, model: Transformer) -> tuple[Transformer, Float[Array, ""]]:
    """One update θ ← θ − η_θ g min(1, clip/|g|), g over all parameters; and the loss before it.

    Args:
        given: tokens (B, T), targets (B, n), the key of dropout or None, the rates of
            `parameter_rates`, and `clip`, the largest norm of a gradient.
        model: is given up to its successor.
    """
    tokens, targets, key, rates, clip = given

    def loss_of(model: Transformer) -> Float[Array, ""]:
        return model.loss(tokens, targets, key)

    loss, gradient = eqx.filter_value_and_grad(loss_of)(model)
    norm = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(gradient)))
    scale = jnp.minimum(1, clip / jnp.where(norm == 0, 1, norm))
    update = jax.tree.map(lambda g, rate: -(rate * scale) * g, gradient, rates)
    return eqx.apply_updates(model, update), loss


def train_language_model(
    model: Transformer,
    columns: Int[np.ndarray, "n B"],
    rates: LearningRates,
    steps: int,
    *,
    context_length: int = 35,
    other: float | None = None,
    clip: float = 0.5,
    seed: int = 0,
    record_at: Iterable[int] = (),
    measure: Callable[[Transformer], Measures] | None = None,
    progress: bool | str = False,
    checkpoint: str | Path | None = None,
    setting: Mapping[str, Any] | None = None,
) -> LanguageModelRun:
    """Train `model` to predict each next token of a text by SGD without momentum (paper, Fig. 7).

    Args:
        model: as training begins.
        columns: the text, of `stream_columns`.
        rates: η_Y of the decoder and η_Z of queries and keys, per step.
        steps: updates.
        context_length: T, tokens of a window.
        other: the learning rate of all other parameters; None = that of the decoder.
        clip: largest norm of the gradient; inf = none.
        seed: of dropout.
        record_at: after how many updates to measure.
        measure: what; called on the host with the model, returns arrays by name.
        progress: whether to show a bar; a string is its name.
        checkpoint: a .npz file, kept up to date about once a minute and at the end. Where it is
            there already, training goes on from it, to the very same numbers.
        setting: what a checkpoint must agree on beside the numbers above.

    Raises:
        ValueError: for an argument that is not as above; a text shorter than a window; a
            checkpoint that is none, or of another setting, which is named, or has gone further.
        KeyboardInterrupt: on ctrl-C, after what is done was saved.
    """
    steps = checks.integer("steps", steps, 1)
    context_length = checks.integer("context_length", context_length, 1)
    if len(columns) <= context_length:
        raise ValueError(
            f"columns must hold more rows than a window, {context_length}, held {len(columns)}."
        )
    if other is None:
        other = float(rates.decoder)
    if not 0 <= other < np.inf:
        raise ValueError(f"other must be at least 0 and finite, was {other}.")
    if not clip > 0:
        raise ValueError(f"clip must be above 0, was {clip}.")
    wanted = {int(n) for n in record_at} if measure is not None else set()
    about = _about(model, columns, rates, other, clip, context_length, seed, setting)
    path = None if checkpoint is None else files.writable_file("checkpoint", checkpoint)
    if path is not None and path.exists():
        start, model, recorded, losses = _read(path, model, about)
        if start > steps:
            raise ValueError(f"steps must be at least the {start} of {path}, was {steps}.")
        if unknown := {n for n in wanted if n < start} - set(recorded):
            raise ValueError(f"record_at must be that of {path}, which was not at {min(unknown)}.")
    else:
        # Steps take over what they are given, and no buffer may be given twice.
        start, model, recorded, losses = 0, jax.tree.map(jnp.copy, model), {}, []
    each = parameter_rates(model, rates, other)
    key = jax.random.key(checks.seed("seed", seed), impl="threefry2x32")
    key = jax.random.fold_in(key, _DROPOUT)
    limit = jnp.asarray(clip, model.embedding.dtype)

    def save(step: int) -> None:
        if path is not None:
            _write(path, about | {"step": step}, model, recorded, losses)

    done, saved = start, time.monotonic()
    name = progress if isinstance(progress, str) else None
    try:
        bar = tqdm(
            total=steps, initial=start, unit="step", desc=name, disable=not progress, leave=False
        )
        with bar:
            while True:
                if done in wanted and done not in recorded and measure is not None:
                    recorded[done] = {k: np.asarray(v) for k, v in measure(model).items()}
                if done >= steps:
                    break
                tokens, targets = batch_of(columns, done, context_length)
                given = tokens, targets, jax.random.fold_in(key, done), each, limit
                model, loss = sgd_step(given, model)
                losses.append(float(loss))
                done += 1
                bar.update()
                if time.monotonic() - saved > _CHECKPOINT_EVERY:
                    save(done)
                    saved = time.monotonic()
    except KeyboardInterrupt:
        save(done)
        raise
    if done > start:
        save(done)
    at = sorted(wanted & set(recorded))
    measures = {k: np.stack([recorded[n][k] for n in at]) for k in recorded[at[0]]} if at else {}
    return LanguageModelRun(model, np.array(at, np.int64), measures, np.array(losses, np.float32))


def _about(
    model: Transformer,
    columns: np.ndarray,
    rates: LearningRates,
    other: float,
    clip: float,
    context_length: int,
    seed: int,
    setting: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """What two runs must share for one to go on from the other; not how far they go."""
    a = model.architecture
    return files.plain(
        {
            "format": "scan-snap-ode language model 2",
            **{name: getattr(a, name) for name in a.__dataclass_fields__},
            "tokens": columns.size,
            "batch_size": columns.shape[1],
            "context_length": context_length,
            "decoder rate": float(rates.decoder),
            "attention rate": float(rates.attention),
            "other rate": float(other),
            "clip": float(clip),
            "seed": seed,
            **(setting or {}),
        }
    )


def _write(
    path: Path,
    about: Mapping[str, Any],
    model: Transformer,
    recorded: Mapping[int, Measures],
    losses: list[float],
) -> None:
    arrays: dict[str, Any] = {
        f"leaf_{k}": np.asarray(x) for k, x in enumerate(jax.tree.leaves(model))
    }
    arrays |= {"about": np.array(json.dumps(about)), "loss": np.array(losses)}
    for step, measures in recorded.items():
        arrays |= {f"measure {step} {name}": value for name, value in measures.items()}
    with files.whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **arrays)


def _read(
    path: Path, model: Transformer, about: Mapping[str, Any]
) -> tuple[int, Transformer, dict[int, dict[str, Any]], list[float]]:
    try:
        with path.open("rb") as opened, np.load(opened, allow_pickle=False) as file:
            held = {name: file[name] for name in file.files}
        earlier = json.loads(str(held.pop("about")))
        step, losses = int(earlier.pop("step")), held.pop("loss").tolist()
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"checkpoint must be one of a Transformer, {path} was not: {error}."
        ) from error
    for name in sorted({*earlier, *about}):
        if earlier.get(name) != about.get(name):
            raise ValueError(
                f"checkpoint must be of the same setting, {path} has {name} "
                f"{earlier.get(name)!r} where {about.get(name)!r} is asked for."
            )
    leaves, structure = jax.tree.flatten(model)
    model = jax.tree.unflatten(
        structure, [jnp.asarray(held.pop(f"leaf_{k}")) for k in range(len(leaves))]
    )
    recorded: dict[int, dict[str, Any]] = {}
    for name, value in held.items():
        _, at, measure = name.split(" ", 2)
        recorded.setdefault(int(at), {})[measure] = value
    return step, model, recorded, losses
