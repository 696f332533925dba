"""Sequence classes: what a one-layer Transformer is asked to predict (paper, Section 3)."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from scan_snap_ode import checks

if TYPE_CHECKING:
    from scan_snap_ode.problem.assumptions import Assumptions
    from scan_snap_ode.rates import LearningRates

PAD = -1


@dataclass(frozen=True, eq=False)
class Layout:
    """Which token stands where: the static part of `SequenceClasses`.

    Equal layouts hash alike, so a class set passed to a compiled function recompiles it only when
    its tokens change, never when its probabilities do.
    """

    ids: NDArray[np.int32]  # (N, L), PAD where a row's support ends
    query: NDArray[np.int32]  # (N,)
    next_token: NDArray[np.int32]  # (N,)
    vocab_size: int
    words: tuple[str, ...] | None = None
    origin: str = ""

    @cached_property
    def _digest(self) -> bytes:
        facts = (self.ids.shape, self.vocab_size, self.words, self.origin)
        digest = hashlib.blake2b(repr(facts).encode("utf-8", "surrogatepass"))
        for array in (self.ids, self.query, self.next_token):
            digest.update(np.ascontiguousarray(array).tobytes())
        return digest.digest()

    def __hash__(self) -> int:
        return hash(self._digest)

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Layout) and self._digest == other._digest)

    @cached_property
    def mask(self) -> NDArray[np.bool_]:
        return self.ids != PAD

    @cached_property
    def support_tokens(self) -> NDArray[np.int32]:
        return np.flatnonzero(self.num_classes_of_token).astype(np.int32)

    @cached_property
    def num_classes_of_token(self) -> NDArray[np.int64]:
        """How many classes hold each token, up to the largest that one holds."""
        return np.bincount(self.ids[self.mask])

    @cached_property
    def columns(self) -> NDArray[np.int32]:
        """(N, L): position of each id in `support_tokens`; padding points at column 0."""
        return positions(self.support_tokens, np.where(self.mask, self.ids, self.support_tokens[0]))

    @cached_property
    def query_tokens(self) -> NDArray[np.int32]:
        return np.unique(self.query)

    @cached_property
    def query_row(self) -> NDArray[np.int32]:
        return positions(self.query_tokens, self.query)

    @cached_property
    def next_tokens(self) -> NDArray[np.int32]:
        return np.unique(self.next_token)

    @cached_property
    def decoder(self) -> DecoderColumns:
        """The reduced columns of Y: next tokens, then one column shared by all other tokens."""
        num_other = self.vocab_size - len(self.next_tokens)
        tokens, multiplicity = self.next_tokens, np.ones(len(self.next_tokens))
        if num_other:
            tokens, multiplicity = np.append(tokens, PAD), np.append(multiplicity, num_other)
        return DecoderColumns(tokens, multiplicity, positions(self.next_tokens, self.next_token))

    @cached_property
    def full_decoder(self) -> DecoderColumns:
        """One column of Y per token of the vocabulary."""
        tokens = np.arange(self.vocab_size, dtype=np.int32)
        return DecoderColumns(tokens, np.ones(self.vocab_size), self.next_token)

    def decoder_of_width(self, width: int) -> DecoderColumns:
        """The columns that a Y with `width` columns has."""
        return self.decoder if width == len(self.decoder.tokens) else self.full_decoder


@dataclass(frozen=True, eq=False)
class DecoderColumns:
    """Columns of Y that are kept: tokens (PAD = shared by the rest), how often each counts in the
    softmax, and the column of every class's next token."""

    tokens: NDArray[np.int32]  # (D,)
    multiplicity: NDArray[np.float64]  # (D,)
    target: NDArray[np.int32]  # (N,)


class SequenceClasses(eqx.Module):
    r"""N sequence classes over a vocabulary of M tokens (paper, Section 3).

    Class i is a distribution P_i of contextual tokens, a query token m_i (the window's last token),
    the next token n_i to predict, and a weight w_i. Stored sparsely: an N×M array is never made.

    Args:
        probs: (N, M), non-negative, rows summing to 1.
        query: (N,) token ids in [0, M).
        next_token: (N,) token ids in [0, M). Many classes may share a query or a next token.
        weights: (N,), non-negative, summing to 1; None = uniform.
        vocab_size: M; may be left out, else must agree with `probs`.
        words: M names of the tokens, for printing and figures.
        origin: where the classes come from, kept with every result.

    Raises:
        ValueError: naming the argument, what it must be and what it was.

    Differentiable in `probs` and `weights`; token ids are static. A concrete zero in `probs` is no
    part of the support; traced `probs` keep every token.

    >>> import numpy as np, scan_snap_ode as sso
    >>> probs = np.array([[.5, .5, 0, 0, 0, 0], [.5, 0, .5, 0, 0, 0]])
    >>> classes = sso.SequenceClasses(probs, query=[3, 3], next_token=[4, 5])
    >>> print(classes)
    SequenceClasses
      classes N      2 (1 query token, 2 next tokens)
      vocabulary M   6
      support        3 tokens (1 common), at most 2 a class
    """

    layout: Layout = eqx.field(static=True)
    support_probs: Float[Array, "N L"]
    weights: Float[Array, " N"]
    pooled: SequenceClasses | None

    def __init__(
        self,
        probs: Any,
        query: Any,
        next_token: Any,
        weights: Any = None,
        vocab_size: int | None = None,
        *,
        words: Sequence[str] | None = None,
        origin: str = "",
    ):
        probs = _as_floats("probs", probs)
        if probs.ndim != 2:
            raise ValueError(f"probs must have shape (N, M), was of shape {probs.shape}.")
        if vocab_size is not None and checks.integer("vocab_size", vocab_size, 2) != probs.shape[1]:
            raise ValueError(
                f"vocab_size must equal the width of probs, {probs.shape[1]}, was {vocab_size}."
            )
        vocab_size = probs.shape[1]
        if checks.is_concrete(probs):
            ids, probs = _to_padded(np.asarray(probs))
        else:
            ids = np.broadcast_to(np.arange(probs.shape[1], dtype=np.int32), probs.shape)
        self._fill(ids, probs, query, next_token, weights, vocab_size, words, origin, None)

    @classmethod
    def from_sparse(
        cls,
        ids: Any,
        probs: Any,
        query: Any,
        next_token: Any,
        weights: Any = None,
        *,
        vocab_size: int,
        words: Sequence[str] | None = None,
        origin: str = "",
        pooled: SequenceClasses | None = None,
    ) -> SequenceClasses:
        """Classes from their supports: `ids` (N, L) token ids padded with -1, `probs` (N, L) with 0
        where padded. `pooled`: the classes on which attention is to be measured where these are
        single windows. Other arguments and errors as in `SequenceClasses`."""
        self = object.__new__(cls)
        ids = checks.token_ids("ids", ids, 2)
        probs = _as_floats("probs", probs)
        if ids.shape != probs.shape:
            raise ValueError(
                f"ids and probs must have one shape, were of shapes {ids.shape} and {probs.shape}."
            )
        self._fill(ids, probs, query, next_token, weights, vocab_size, words, origin, pooled)
        return self

    def _fill(
        self, ids, probs, query, next_token, weights, vocab_size, words, origin, pooled
    ) -> None:
        vocab_size = checks.integer("vocab_size", vocab_size, 2)
        query = checks.token_ids("query", query, 1)
        next_token = checks.token_ids("next_token", next_token, 1)
        num_classes = ids.shape[0]
        if num_classes == 0:
            raise ValueError("probs must hold at least one class, was empty.")
        for name, array in (("query", query), ("next_token", next_token)):
            if array.shape != (num_classes,):
                raise ValueError(f"{name} must have shape ({num_classes},), was {array.shape}.")
            _check_range(name, array, 0, vocab_size)
        _check_range("ids", ids, PAD, vocab_size)
        if checks.is_concrete(probs):
            host = np.asarray(probs)
            _check_probs(host)
            if ((ids == PAD) & (host != 0)).any():
                raise ValueError("probs must be 0 where ids is -1 (padding), was not.")
            ids = np.where(host == 0, PAD, ids)
        _check_distinct(ids, vocab_size)
        words = None if words is None else _as_words(words, vocab_size)
        checks.kind("origin", origin, str)
        checks.kind("pooled", pooled, SequenceClasses, type(None))
        if pooled is not None and pooled.pooled is not None:
            raise ValueError("pooled must be classes without any pooled of their own, had some.")
        object.__setattr__(
            self, "layout", Layout(ids, query, next_token, vocab_size, words, origin)
        )
        object.__setattr__(self, "support_probs", jnp.asarray(probs))
        object.__setattr__(self, "weights", _as_weights(weights, num_classes, probs.dtype))
        object.__setattr__(self, "pooled", pooled)

    @property
    def num_classes(self) -> int:
        """N."""
        return len(self.layout.query)

    @property
    def vocab_size(self) -> int:
        """M."""
        return self.layout.vocab_size

    @property
    def words(self) -> tuple[str, ...] | None:
        """M token names, or None."""
        return self.layout.words

    @property
    def ids(self) -> Int[np.ndarray, "N L"]:
        """(N, L) token ids of each class's support, padded with -1."""
        return self.layout.ids

    @property
    def query(self) -> Int[np.ndarray, " N"]:
        """(N,) query token of each class."""
        return self.layout.query

    @property
    def next_token(self) -> Int[np.ndarray, " N"]:
        """(N,) next token of each class."""
        return self.layout.next_token

    @property
    def query_tokens(self) -> Int[np.ndarray, " Q"]:
        """(Q,) the query tokens, sorted and distinct."""
        return self.layout.query_tokens

    @property
    def next_tokens(self) -> Int[np.ndarray, " K"]:
        """(K,) the next tokens, sorted and distinct."""
        return self.layout.next_tokens

    @property
    def support_tokens(self) -> Int[np.ndarray, " S"]:
        """(S,) all tokens that some class can hold, sorted."""
        return self.layout.support_tokens

    @property
    def common_tokens(self) -> Int[np.ndarray, " C"]:
        """Tokens in the support of several classes, sorted."""
        return np.flatnonzero(self.layout.num_classes_of_token > 1).astype(np.int32)

    def distinct_tokens(self, i: int) -> Int[np.ndarray, " d"]:
        """Tokens in the support of class `i` alone, sorted."""
        row = self.ids[checks.integer("i", i, 0, self.num_classes - 1)]
        row = row[row != PAD]
        return np.sort(row[self.layout.num_classes_of_token[row] == 1])

    @property
    def probs(self) -> Float[Array, "N M"]:
        """(N, M) dense P; ValueError when that is too large."""
        checks.dense_size("probs", self.num_classes, self.vocab_size)
        return self.dense(self.support_probs, self.ids, self.vocab_size)

    def dense(self, values: Float[Array, "N L"], where: Any, width: int) -> Float[Array, "N W"]:
        """Padded `values` laid out at the positions `where` of (N, width)."""
        shape = (self.num_classes, width)
        rows, slots = np.nonzero(self.layout.mask)
        columns = np.asarray(where)[rows, slots]
        if not checks.is_concrete(values):
            return jnp.zeros(shape, values.dtype).at[rows, columns].set(values[rows, slots])
        host = np.zeros(shape, values.dtype)  # known values: no program to compile
        host[rows, columns] = np.asarray(values)[rows, slots]
        return jnp.asarray(host)

    @property
    def overlap(self) -> Float[Array, "N N"]:
        """(N, N) E = FᵀF − I of the initial, normalised class vectors (paper, Section 4.1)."""
        checks.dense_size("overlap", self.num_classes, len(self.support_tokens))
        c = self.dense(self.support_probs, self.layout.columns, len(self.support_tokens))
        f = c / jnp.linalg.norm(c, axis=1, keepdims=True)
        return f @ f.T - jnp.eye(self.num_classes, dtype=f.dtype)

    def check_assumptions(
        self, rates: LearningRates | None = None, context_length: int | None = None
    ) -> Assumptions:
        """What the theory assumes of these classes, and whether it holds: a table when printed.

        Args:
            rates: per step; None leaves the assumptions on them without a verdict.
            context_length: T >= 2, the query counted; None likewise.

        Raises:
            ValueError: for an argument that is not as above, or traced classes or rates.

        >>> import scan_snap_ode as sso
        >>> report = sso.syn_small().check_assumptions(sso.LearningRates(1.0, 0.1), 128)
        >>> [line.name for line in report.violated][:2]
        ['long sequences', 'many tokens a class']
        """
        from scan_snap_ode.problem.assumptions import check_assumptions

        return check_assumptions(self, rates, context_length)

    def name(self, token: int) -> str:
        """The token's word, or its number where no words are known."""
        token = checks.integer("token", token, 0, self.vocab_size - 1)
        return str(token) if self.words is None else self.words[token]

    def __repr__(self) -> str:
        def count(n: int, noun: str) -> str:
            return f"{n:,} {noun}" + ("" if n == 1 else "s")

        queries, nexts = len(self.query_tokens), len(self.next_tokens)
        widest = int(self.layout.mask.sum(1).max())
        return "\n".join(
            [
                "SequenceClasses",
                f"  classes N      {self.num_classes:,} "
                f"({count(queries, 'query token')}, {count(nexts, 'next token')})",
                f"  vocabulary M   {self.vocab_size:,}",
                f"  support        {count(len(self.support_tokens), 'token')} "
                f"({len(self.common_tokens):,} common), at most {widest:,} a class",
            ]
        )


def positions(sorted_tokens: NDArray[np.int32], tokens: NDArray[np.int32]) -> NDArray[np.int32]:
    """Where each of `tokens` stands in `sorted_tokens`."""
    return np.searchsorted(sorted_tokens, tokens).astype(np.int32)


def _as_floats(name: str, value: Any) -> Any:
    array = checks.reals(name, value) if checks.is_concrete(value) else jnp.asarray(value)
    if not np.issubdtype(array.dtype, np.floating):
        return array.astype(jnp.result_type(float))
    return value if isinstance(value, jax.Array) else array.astype(jnp.result_type(array))


def _as_words(words: Any, vocab_size: int) -> tuple[str, ...]:
    names = tuple(words) if isinstance(words, Iterable) else ()
    if isinstance(words, str) or not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"words must be a list of {vocab_size} strings, was {words!r:.80}.")
    if len(names) != vocab_size:
        raise ValueError(f"words must hold vocab_size = {vocab_size} names, held {len(names)}.")
    return names


def _check_range(name: str, array: NDArray[np.int32], low: int, high: int) -> None:
    bad = array[(array < low) | (array >= high)]
    if bad.size:
        raise ValueError(f"{name} must lie in [{low}, {high}), held {bad.flat[0]}.")


def _check_probs(probs: np.ndarray) -> None:
    if not np.isfinite(probs).all():
        i = int(np.argwhere(~np.isfinite(probs))[0, 0])
        raise ValueError(f"probs must be finite, class {i} holds {probs[i].sum()}.")
    if (probs < 0).any():
        i, j = np.argwhere(probs < 0)[0]
        raise ValueError(f"probs must be non-negative, class {i} holds {probs[i, j]}.")
    totals = probs.sum(1, dtype=np.float64)
    if (totals == 0).any():
        i = int(np.flatnonzero(totals == 0)[0])
        raise ValueError(f"probs must give every class a token, class {i} has an empty support.")
    wrong = np.flatnonzero(np.abs(totals - 1) > 1e-5)
    if wrong.size:
        i = int(wrong[0])
        raise ValueError(f"probs must sum to 1 in each row, class {i} sums to {totals[i]:.6g}.")


def _check_distinct(ids: NDArray[np.int32], vocab_size: int) -> None:
    ordered = np.sort(ids, axis=1)
    twice = (ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != PAD)
    if twice.any():
        i, j = np.argwhere(twice)[0]
        raise ValueError(f"ids must be distinct in a class, class {i} repeats {ordered[i, j]}.")


def _as_weights(weights: Any, num_classes: int, dtype: Any) -> Array:
    if weights is None:
        return jnp.full(num_classes, 1 / num_classes, dtype)
    weights = _as_floats("weights", weights)
    if weights.shape != (num_classes,):
        raise ValueError(f"weights must have shape ({num_classes},), was {weights.shape}.")
    if checks.is_concrete(weights):
        host = np.asarray(weights)
        if not (np.isfinite(host).all() and (host >= 0).all()):
            raise ValueError(f"weights must be finite and non-negative, was {host}.")
        if abs(host.sum(dtype=np.float64) - 1) > 1e-5:
            raise ValueError(f"weights must sum to 1, summed to {host.sum():.6g}.")
    return jnp.asarray(weights, dtype)


def _to_padded(probs: np.ndarray) -> tuple[NDArray[np.int32], np.ndarray]:
    """Dense (N, M) to padded ids and probabilities (N, L)."""
    if not probs.size:
        return np.zeros(probs.shape, np.int32), probs
    present = probs != 0
    width = max(int(present.sum(1).max()), 1)
    order = np.argsort(~present, axis=1, kind="stable")[:, :width].astype(np.int32)
    values = np.take_along_axis(probs, order, axis=1)
    return np.where(values != 0, order, PAD).astype(np.int32), values
