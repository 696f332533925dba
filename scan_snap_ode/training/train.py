"""train(): the model of the flows, trained step by step."""

from __future__ import annotations

import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

from scan_snap_ode import checks, files
from scan_snap_ode.problem import initial
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.streams.windows import Windows
from scan_snap_ode.training.batches import (
    FixedBatches,
    FreshWindows,
    ObservedWindows,
    Sampler,
    WholeSource,
)
from scan_snap_ode.training.loop import Carry, Stepper, segments
from scan_snap_ode.trajectory import Interrupted, Status, Trajectory

_CHECKPOINT_EVERY = 10.0  # seconds


def train(
    source: SequenceClasses | Windows | FixedBatches,
    rates: LearningRates,
    steps: int,
    *,
    batch_size: int | None = 128,
    context_length: int | None = None,
    momentum: float = 0.0,
    optimizer: str | optax.GradientTransformation = "sgd",
    init: Any = "zeros",
    num_seeds: int = 1,
    seed: int = 0,
    record_at: Any = None,
    progress: bool = False,
    checkpoint: str | Path | None = None,
) -> Trajectory:
    """Train Y and Z by SGD on the mean loss of batches (paper, Sections 2 and 6).

    Args:
        source: `SequenceClasses` (fresh windows every step), `Windows` of a text (drawn with
            replacement) or `FixedBatches` (replayed in order).
        rates: per step; arrays add leading axes, and share each seed's batches.
        steps: number of updates, ≥ 1; with `init` a Trajectory, counted from its start.
        batch_size: windows a step; None = the whole source at once, which is gradient descent (on
            classes: on the mean over all windows, see `context_length`).
        context_length: T of fresh windows, counting the query; None = 128. With `batch_size` None:
            T of the objective, to first order in 1/T (`FiniteContext`), or None = infinitely long.
            Sources other than classes have their own.
        momentum: μ of heavy-ball SGD: v ← μv + gradient, θ ← θ − ηv.
        optimizer: "sgd", "adam", or an optax transformation applied to the gradient before it is
            scaled by the two rates (so without learning rate or sign of its own). A
            transformation sees every column of Y: the cost then grows with M.
        init: "zeros"; "uniform" (in ±1/sqrt(M), per seed); (Y0, Z0) of (M, M) arrays; or a
            Trajectory of the same run, which is continued exactly.
        num_seeds: runs with seeds seed, seed+1, …; more than one adds a first axis.
        seed: ≥ 0.
        record_at: numbers of updates after which to record, 0 = before the first; None =
            about 40, evenly on a log axis, with 0 and `steps`.
        progress: show a bar.
        checkpoint: file in which the run so far is kept (every 10 s, and when interrupted);
            `train(..., init=load(checkpoint))` goes on from there.

    Returns:
        Trajectory with `.batch_loss`. Attention and entropy of windows are taken on
        `windows.classes()`, their loss on all windows; of FixedBatches, all on the pooled class of
        each observed (query, next). A run whose values stop being finite says so in `.status`.

    Raises:
        ValueError: for an argument that is not as above.
        Interrupted: on ctrl-C, with the run so far.

    >>> import scan_snap_ode as sso
    >>> run = sso.train(sso.syn_small(), sso.LearningRates(1.0, 1.0), 100, record_at=[0, 100])
    >>> bool(run.loss[1] < run.loss[0])
    True
    """
    steps = checks.integer("steps", steps, 1)
    num_seeds = checks.integer("num_seeds", num_seeds, 1)
    seed = checks.seed("seed", seed, num_seeds)
    checks.kind("rates", rates, LearningRates)
    transformation = _transformation(optimizer, momentum)
    classes, sampler = _source(source, batch_size, context_length, steps)
    rates = jax.tree.map(lambda x: x.astype(classes.support_probs.dtype), rates)
    stepper = Stepper(sampler, transformation, rates, seed + np.arange(num_seeds))
    earlier = init if isinstance(init, Trajectory) else None
    about = _about(sampler, optimizer, momentum, init, num_seeds, seed)
    if earlier is None:
        full = not isinstance(optimizer, str)
        start, carry = 0, stepper.begin(_initial(classes, init, stepper, full))
        stops = _record_at(record_at, 0, steps)
    else:
        start, carry = _continued(earlier, stepper, about, classes, steps)
        stops = _record_at(record_at, start + 1, steps)
    if checkpoint is not None:
        files.writable_file("checkpoint", checkpoint)
    records: list[tuple[int, Carry]] = []

    def so_far(step: int, carry: Carry) -> Trajectory:
        run = _trajectory(classes, stepper, records, step, carry, about)
        return run if earlier is None else earlier.followed_by(run)

    def save(run: Trajectory) -> Trajectory:
        if checkpoint is not None:
            run.save(checkpoint, observables=())
        return run

    if stops and stops[0] == start:
        records.append((start, carry))
    step, saved = start, time.monotonic()
    running = segments(stepper, carry, start, [*stops, steps], progress)
    try:
        for step, carry in running:
            if step in stops:
                records.append((step, carry))
            if time.monotonic() - saved > _CHECKPOINT_EVERY:
                save(so_far(step, carry))
                saved = time.monotonic()
    except KeyboardInterrupt:
        raise Interrupted(save(so_far(step, carry))) from None
    return save(so_far(step, carry))


def _source(
    source: Any, batch_size: int | None, context_length: int | None, steps: int
) -> tuple[SequenceClasses, Sampler]:
    """The classes that a Trajectory is labelled and measured by, and where batches come from."""
    if batch_size is not None:
        batch_size = checks.integer("batch_size", batch_size, 1)
    if context_length is not None:
        context_length = checks.integer("context_length", context_length, 2)
    if isinstance(source, SequenceClasses):
        if batch_size is None:
            return source, WholeSource(source, context_length)
        return source, FreshWindows(source, batch_size, (context_length or 128) - 1)
    if not isinstance(source, (Windows, FixedBatches)):
        raise ValueError(
            f"source must be SequenceClasses, Windows or FixedBatches, was {type(source).__name__}."
        )
    windows = source if isinstance(source, Windows) else source.windows
    if context_length not in (None, windows.context_length):
        raise ValueError(
            f"context_length must be that of the windows, {windows.context_length}, or None, "
            f"was {context_length}."
        )
    classes = windows.as_classes()
    if isinstance(source, Windows):
        if batch_size is None:
            return classes, WholeSource(classes)
        return classes, ObservedWindows(classes, batch_size)
    if batch_size is None:
        raise ValueError("batch_size must not be None for FixedBatches, which have their own.")
    if steps > source.num_steps:
        raise ValueError(
            f"steps must be at most the {source.num_steps} of the FixedBatches, was {steps}."
        )
    return source.classes, ObservedWindows(classes, source.batch_size, in_order=True)


def _transformation(optimizer: Any, momentum: float) -> optax.GradientTransformation:
    given = isinstance(optimizer, optax.GradientTransformation)
    if not given and not (isinstance(optimizer, str) and optimizer in ("sgd", "adam")):
        raise ValueError(
            f'optimizer must be "sgd", "adam" or an optax transformation, was {optimizer!r}.'
        )
    checks.within("momentum", momentum, 0, 1)
    if momentum and optimizer != "sgd":
        raise ValueError(f'momentum must be 0 unless optimizer is "sgd", was {momentum}.')
    if given:
        _check_direction(optimizer)
        return optimizer
    return _named_transformation(optimizer, float(momentum))


@lru_cache
def _named_transformation(name: str, momentum: float) -> optax.GradientTransformation:
    """One object a setting: jit knows a transformation by identity."""
    if name == "adam":
        return optax.scale_by_adam()
    return optax.trace(momentum) if momentum else optax.identity()


def _check_direction(optimizer: optax.GradientTransformation) -> None:
    """A whole optimizer, which ends in −learning rate, would climb the loss here."""
    gradient = (jnp.ones((2, 2)), jnp.ones((2, 2)))
    update, _ = optimizer.update(gradient, optimizer.init(gradient), gradient)
    if sum(float(jnp.sum(x)) for x in jax.tree.leaves(update)) < 0:
        raise ValueError(
            "optimizer must be a transformation of the gradient without sign or learning rate, "
            "such as optax.scale_by_adam(); it turned a gradient round, as optax.adam(…) does."
        )


def _initial(classes: SequenceClasses, init: Any, stepper: Stepper, full: bool) -> initial.State:
    """(Y, Z) for every seed and rates."""
    layout, dtype = classes.layout, classes.support_probs.dtype
    lead = (len(stepper.seeds), *stepper.rates.shape)
    if isinstance(init, str) and init == "uniform":
        keys = [
            jax.random.fold_in(jax.random.key(int(s), impl="threefry2x32"), 2**32 - 1)
            for s in stepper.seeds
        ]
        states = [initial.uniform(layout, key, dtype) for key in keys]
        inner = (1,) * len(stepper.rates.shape)
        parts = [jnp.stack(x) for x in zip(*states, strict=True)]
        parts = [x.reshape(len(x), *inner, *x.shape[1:]) for x in parts]
    elif isinstance(init, str) and init == "zeros":
        parts = initial.zeros(layout, dtype, full)
    elif isinstance(init, str):
        raise ValueError(
            f'init must be "zeros", "uniform", a Trajectory or (Y0, Z0), was {init!r}.'
        )
    else:
        parts = initial.given(layout, init, dtype, full)
    Y, Z = (jnp.broadcast_to(x, (*lead, *x.shape[-2:])) for x in parts)
    return Y, Z


def _continued(
    earlier: Trajectory, stepper: Stepper, about: dict, classes: SequenceClasses, steps: int
) -> tuple[int, Carry]:
    """Where `earlier` ended, and its carry."""
    about["init"] = earlier.about.get("init")
    given = [k for k in about if k != "method"]  # which follows from the others
    differs = [k for k in given if earlier.about.get(k) != about[k]]
    if earlier.classes.layout != classes.layout:
        differs.append("source")
    if earlier.rates.shape != stepper.rates.shape or not all(
        np.array_equal(a, b)
        for a, b in zip(jax.tree.leaves(earlier.rates), jax.tree.leaves(stepper.rates), strict=True)
    ):
        differs.append("rates")
    if earlier.attention_logits.dtype != classes.support_probs.dtype:
        differs.append("precision")
    if differs:
        raise ValueError(f"init must be a Trajectory of the same run, differs in {differs[0]}.")
    start = int(np.max(np.asarray(earlier.stats["updates"])))
    if steps < start:
        raise ValueError(
            f"steps must be at least the {start} updates that init has had, was {steps}."
        )
    width = earlier.decoder.shape[-1]
    full = width != len(classes.layout.decoder.tokens)
    like = stepper.begin(_initial(classes, "zeros", stepper, full))
    leaves = [jnp.asarray(x) for x in earlier.state]
    leaves = [x[None] for x in leaves] if len(stepper.seeds) == 1 else leaves
    if [jnp.shape(x) for x in leaves] != [jnp.shape(x) for x in jax.tree.leaves(like)]:
        raise ValueError("init must be a Trajectory of the same run, differs in optimizer.")
    return start, jax.tree.unflatten(jax.tree.structure(like), leaves)


def _record_at(record_at: Any, first: int, steps: int) -> list[int]:
    """The numbers of updates from `first` on at which to record, rising."""
    if record_at is None:
        chosen = np.append(0, np.round(np.geomspace(1, steps, 40)).astype(int))
    else:
        chosen = checks.reals("record_at", record_at)
        if chosen.ndim != 1 or not chosen.size or not np.issubdtype(chosen.dtype, np.integer):
            raise ValueError(
                f"record_at must be a non-empty list of whole numbers, was {record_at!r}."
            )
        if chosen.min() < 0 or chosen.max() > steps:
            bad = chosen.min() if chosen.min() < 0 else chosen.max()
            raise ValueError(f"record_at must lie in [0, {steps}], held {bad}.")
    return [int(n) for n in np.unique(chosen) if n >= first]


def _about(
    sampler: Sampler, optimizer: Any, momentum: float, init: Any, num_seeds: int, seed: int
) -> dict[str, Any]:
    whole = isinstance(sampler, WholeSource)
    by_batches = {"sgd": "SGD", "adam": "Adam"}
    name = by_batches[optimizer] if isinstance(optimizer, str) else "an optax transformation"
    about = {
        "method": "gradient descent" if whole and optimizer == "sgd" else name,
        "optimizer": optimizer if isinstance(optimizer, str) else "optax transformation",
        "momentum": float(momentum),
        "batch_size": "all" if whole else getattr(sampler, "batch_size", None),
        "seed": seed,
        "num_seeds": num_seeds,
        "init": init if isinstance(init, str) else "given",
    }
    if isinstance(sampler, FreshWindows):
        about["context_length"] = sampler.num_context + 1
    elif isinstance(sampler, WholeSource) and sampler.context_length is not None:
        about["context_length"] = sampler.context_length
    return about


def _trajectory(
    classes: SequenceClasses,
    stepper: Stepper,
    records: list[tuple[int, Carry]],
    step: int,
    carry: Carry,
    about: dict[str, Any],
) -> Trajectory:
    axis = 1 + len(stepper.rates.shape)
    pick = (lambda x: x[0]) if len(stepper.seeds) == 1 else (lambda x: x)

    def stacked(of: Any) -> Any:
        kept = [of(carry) for _, carry in records]
        if not kept:  # interrupted before the first record
            like = of(carry)
            return pick(jnp.zeros((*like.shape[:axis], 0, *like.shape[axis:]), like.dtype))
        return pick(jnp.stack(kept, axis))

    finite = [jnp.all(jnp.isfinite(x), (-2, -1)) for x in carry.params]
    status = jnp.where(finite[0] & finite[1], Status.SUCCESS, Status.NOT_FINITE)
    return Trajectory(
        classes=classes,
        rates=stepper.rates,
        ts=jnp.asarray([step for step, _ in records], carry.loss.dtype),
        attention_logits=stacked(lambda c: c.params[1]),
        decoder=stacked(lambda c: c.params[0]),
        status=pick(status),
        stats={"updates": pick(jnp.full(status.shape, step))},
        state=[pick(x) for x in jax.tree.leaves(carry)],
        batch_loss=stacked(lambda c: c.loss),
        about=about,
    )
