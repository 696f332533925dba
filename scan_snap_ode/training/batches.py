"""Where batches come from. A window is its token counts: without positions the model sees no more,
and the cost of a step does not depend on the window's length beyond its distinct tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p
from jaxtyping import Array, Float, Int

from scan_snap_ode import checks
from scan_snap_ode.flows.finite_context import FiniteContextObjective
from scan_snap_ode.flows.objective import Objective, objective
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.streams.windows import Windows, count_windows
from scan_snap_ode.training.pairwise import Batch, loss_and_gradient

# Widest support whose counts are taken by comparing every random word with every threshold.
_COMPARE_ALL = 256
# FixedBatches names every token.
_LARGEST_VOCABULARY = 10_000_000


@runtime_checkable
class Sampler(Protocol):
    """Draws the batch of a step, and knows its loss."""

    classes: SequenceClasses

    def draw(self, key: Array, step: Int[Array, ""]) -> Any:
        """The batch of update number `step` (the first is 0); `key` is that step's own."""
        ...

    def loss_and_gradient(self, state: State, batch: Any) -> tuple[Float[Array, ""], State]:
        """Mean loss of the batch at (Y, Z), in nats, and its gradient."""
        ...


class WholeSource(eqx.Module):
    """All of the source at every step: gradient descent; on classes, in the limit of long windows
    or to first order in 1/T."""

    classes: SequenceClasses
    objective: Objective
    context_length: int | None = eqx.field(static=True)

    def __init__(self, classes: SequenceClasses, context_length: int | None = None):
        self.classes, self.context_length = classes, context_length
        if context_length is None:
            self.objective = objective(classes)
        else:
            self.objective = FiniteContextObjective(classes, context_length)

    def draw(self, key: Array, step: Int[Array, ""]) -> None:
        return None

    def loss_and_gradient(self, state: State, batch: None) -> tuple[Float[Array, ""], State]:
        J, (dY, dZ) = self.objective.value_and_gradient(*state)
        return -J, (-dY, -dZ)


class _Sampled(eqx.Module):
    classes: SequenceClasses
    columns: Int[Array, "N L"]  # leaves, not constants: a compiled program would hold a copy
    query_row: Int[Array, " N"]
    batch_size: int = eqx.field(static=True)

    def loss_and_gradient(self, state: State, batch: Batch) -> tuple[Float[Array, ""], State]:
        decoder = self.classes.layout.decoder_of_width(state[0].shape[1])
        return loss_and_gradient(state, batch, decoder)


class FreshWindows(_Sampled):
    """Windows of T-1 tokens drawn i.i.d. from the classes, new at every step (paper, Section 6).

    Inverse-CDF sampling on the support, with 32-bit integers: probabilities are resolved to 2⁻³²,
    and single and double precision see the same windows. The batch is the last axis, along which
    XLA vectorises.
    """

    thresholds: Array  # (L, N) uint32: how many of the 2³² words fall on a token or one before it
    is_end: Array  # (L, N) bool: no word is left for a later token
    class_thresholds: Array  # (N,) uint32: the same for the weights
    num_context: int = eqx.field(static=True)

    def __init__(self, classes: SequenceClasses, batch_size: int, num_context: int):
        self.classes, self.batch_size, self.num_context = classes, batch_size, num_context
        self.columns = jnp.asarray(classes.layout.columns)
        self.query_row = jnp.asarray(classes.layout.query_row)
        mask = classes.layout.mask
        self.thresholds = _thresholds(np.where(mask, classes.support_probs, 0)).T
        self.class_thresholds = _thresholds(np.asarray(classes.weights))
        width = mask.shape[1]
        end = width - 1 - np.argmax(mask[:, ::-1], axis=1)
        self.is_end = jnp.asarray(np.arange(width)[:, None] >= end[None, :])

    def draw(self, key: Array, step: Int[Array, ""]) -> Batch:
        key_class, key_tokens = jax.random.split(key)
        words = jax.random.bits(key_class, (self.batch_size,), jnp.uint32)
        of_class = jnp.searchsorted(self.class_thresholds[:-1], words, side="right")
        counts = self._counts(key_tokens, of_class)
        return Batch(self.columns[of_class], counts, self.query_row[of_class], of_class)

    def _counts(self, key: Array, of_class: Int[Array, " B"]) -> Float[Array, "B L"]:
        """How many of each window's draws fall on each token of its class's support."""
        first, second = _random_words(key, (self.num_context + 1) // 2, self.batch_size)
        second = second[: self.num_context // 2]
        thresholds = self.thresholds[:, of_class]  # (L, B)
        if len(thresholds) <= _COMPARE_ALL:
            below = _count_below(first, thresholds) + _count_below(second, thresholds)
        else:
            ordered = jnp.sort(jnp.concatenate([first, second]), axis=0)
            below = jax.vmap(jnp.searchsorted, 1, 1)(ordered, thresholds)
        # A class's last token, and the padding behind it, takes all that is left.
        below = jnp.where(self.is_end[:, of_class], self.num_context, below)
        counts = jnp.diff(below, axis=0, prepend=jnp.zeros_like(below[:1]))
        return counts.T.astype(self.classes.support_probs.dtype)


def _thresholds(probs: np.ndarray) -> Array:
    """Along the last axis: how many of the 2³² words fall on an entry or one before it."""
    cdf = np.cumsum(probs, axis=-1, dtype=np.float64)
    scaled = np.floor(cdf / cdf[..., -1:] * 2.0**32)
    return jnp.asarray(np.minimum(scaled, 2.0**32 - 1).astype(np.uint32))


def _random_words(key: Array, rows: int, columns: int) -> tuple[Array, Array]:
    """Two independent arrays of 32 random bits, (rows, columns): the two words that one Threefry
    block yields. `jax.random.bits` keeps one of them, at twice the cost."""
    seed = jax.random.key_data(key)
    counter = jnp.arange(rows * columns, dtype=jnp.uint32).reshape(rows, columns)
    first, second = threefry2x32_p.bind(seed[0], seed[1], counter, jnp.zeros_like(counter))
    return first, second


def _count_below(words: Array, thresholds: Array) -> Int[Array, "L B"]:
    """How many of each column's words lie below each of its thresholds."""
    return jnp.sum(words[:, None, :] < thresholds[None, :, :], axis=0, dtype=jnp.int32)


class ObservedWindows(_Sampled):
    """Observed windows, one a class: drawn with replacement, or `in_order` for `FixedBatches`."""

    in_order: bool = eqx.field(static=True)

    def __init__(self, classes: SequenceClasses, batch_size: int, in_order: bool = False):
        self.classes, self.batch_size, self.in_order = classes, batch_size, in_order
        self.columns = jnp.asarray(classes.layout.columns)
        self.query_row = jnp.asarray(classes.layout.query_row)

    def draw(self, key: Array, step: Int[Array, ""]) -> Batch:
        if self.in_order:
            rows = step * self.batch_size + jnp.arange(self.batch_size, dtype=step.dtype)
        else:
            count = self.classes.num_classes
            rows = jax.random.randint(key, (self.batch_size,), 0, count, jnp.int32)
        counts = self.classes.support_probs[rows]
        return Batch(self.columns[rows], counts, self.query_row[rows], rows)


@dataclass(frozen=True, eq=False, init=False, repr=False)
class FixedBatches:
    """Batches that were drawn elsewhere, to be replayed by `train`.

    Args:
        tokens: (steps, B, T) token ids; the last of each window is its query.
        next_token: (steps, B) the token to predict.
        vocab_size: M; None = the largest token + 1.

    Raises:
        ValueError: when shapes disagree, T < 2, or a token is out of range.
    """

    windows: Windows
    num_steps: int
    batch_size: int

    def __init__(self, tokens: Any, next_token: Any, vocab_size: int | None = None):
        tokens = checks.token_ids("tokens", tokens, 3)
        next_token = checks.token_ids("next_token", next_token, 2)
        if tokens.shape[2] < 2 or 0 in tokens.shape:
            raise ValueError(
                f"tokens must have shape (steps, B, T) with T of at least 2, was {tokens.shape}."
            )
        if next_token.shape != tokens.shape[:2]:
            raise ValueError(
                f"next_token must have shape {tokens.shape[:2]}, was {next_token.shape}."
            )
        if vocab_size is None:
            vocab_size = int(max(tokens.max(), next_token.max())) + 1
        size = checks.integer("vocab_size", vocab_size, 2, at_most=_LARGEST_VOCABULARY)
        for name, array in (("tokens", tokens), ("next_token", next_token)):
            if array.min() < 0 or array.max() >= size:
                bad = array.min() if array.min() < 0 else array.max()
                raise ValueError(f"{name} must lie in [0, {size}), held {bad}.")
        length = tokens.shape[2]
        flat = tokens.reshape(-1)
        starts = np.arange(0, flat.size, length)
        held, counts = count_windows(flat, starts, length - 1)
        windows = Windows(
            held,
            counts,
            flat[length - 1 :: length],
            next_token.reshape(-1),
            tuple(map(str, range(size))),
            length,
            "fixed batches",
            "",
        )
        for name, value in (
            ("windows", windows),
            ("num_steps", tokens.shape[0]),
            ("batch_size", tokens.shape[1]),
        ):
            object.__setattr__(self, name, value)

    @cached_property
    def classes(self) -> SequenceClasses:
        """The pooled class of each observed (query, next token)."""
        return self.windows.classes()

    def __repr__(self) -> str:
        return (
            f"FixedBatches({self.num_steps:,} steps of {self.batch_size:,} windows of "
            f"T = {self.windows.context_length:,}, M = {self.windows.vocab_size:,})"
        )
