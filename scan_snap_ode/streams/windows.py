"""Windows of a token stream as token counts: what attention without positions sees of a text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from scan_snap_ode.streams.choices import UNK, Chooser, Words, at_least, listed
from scan_snap_ode.streams.corpora import TokenStream, card

if TYPE_CHECKING:
    from scan_snap_ode.problem.classes import SequenceClasses

_CHUNK = 2**20  # tokens sorted at a time: some 30 MB of temporary arrays
_LARGEST_TABLE = 2**27  # ids and probabilities of that many entries are 1.5 GiB


class ClassSummary(TypedDict):
    """One line of `Windows.summary`."""

    query: str
    next: str
    windows: int
    weight: float
    support: int
    top: list[str]
    distinct: list[str]
    common: list[str]


@dataclass(frozen=True, eq=False, repr=False)
class Windows:
    """Windows of a text, each as its distinct contextual tokens and their counts.

    Attributes (n windows, L the most distinct tokens in one of them):
        tokens: (n, L) int32, each row its distinct contextual tokens, rising, padded with -1.
        counts: (n, L) uint16 (uint32 for windows of more than 65,535 tokens), padded with 0;
            each row sums to `context_length - 1`.
        query: (n,) int32, the last token of each window.
        next_token: (n,) int32, the token after it.
        vocabulary: the V words that stayed, by falling frequency in the text.
        context_length: T, the tokens of a window, its query counted.
        name, md5: those of the stream.

    The windows stand in the order of the text. All arrays are read-only.
    """

    tokens: NDArray[np.int32]
    counts: NDArray[np.unsignedinteger]
    query: NDArray[np.int32]
    next_token: NDArray[np.int32]
    vocabulary: tuple[str, ...]
    context_length: int
    name: str
    md5: str

    def __len__(self) -> int:
        return self.query.size

    def __repr__(self) -> str:
        size = sum(a.nbytes for a in (self.tokens, self.counts, self.query, self.next_token))
        queries = np.bincount(self.query)
        ranked = np.argsort(-queries, kind="stable")[: np.count_nonzero(queries)]
        return card(
            f"Windows of {self.name}",
            {
                "windows": f"{len(self):,} of T = {self.context_length:,}",
                "classes": f"{self._grouping.pairs.size:,}",
                "queries": listed([self.vocabulary[m] for m in ranked], "  "),
                "vocabulary": f"{self.vocab_size:,}",
                "memory": f"{size / 1e6:.1f} MB",
            },
        )

    @property
    def vocab_size(self) -> int:
        """V, the number of words."""
        return len(self.vocabulary)

    @property
    def origin(self) -> str:
        """Where the windows come from, as it is written into results."""
        return f"windows of {self.name}, T = {self.context_length}, md5 {self.md5}"

    @property
    def class_index(self) -> NDArray[np.intp]:
        """(n,) the class of `classes()` that each window belongs to."""
        return self._grouping.index

    def classes(self) -> SequenceClasses:
        """The long-sequence limit: one class per (query, next token), by falling frequency.

        A class has its windows' pooled counts as probabilities and their share as weight; equally
        frequent classes stand by query, then next token. Made once, then remembered.

        Raises ValueError if the classes' supports need a table of over 2**27 entries.
        """
        return self._classes

    def as_classes(self) -> SequenceClasses:
        """Each window a class of its own, equally weighted; it remembers `classes()` as pooled.

        Made once, then remembered. Raises ValueError as `classes` does.
        """
        return self._window_classes

    def summary(self, top: int = 5) -> list[ClassSummary]:
        """What each class of `classes()` holds, in its order, one dict a class.

        Keys: `query`, `next` (words), `windows`, `weight`, `support` (number of distinct
        contextual tokens), and the `top` most probable contextual words among all (`top`), among
        those in this class's support only (`distinct`) and among the others (`common`).

        Raises ValueError if `top` is not an integer of at least 1.
        """
        top = at_least(1, "top", top)
        _, tokens, counts = self._pooled
        is_common = np.bincount(tokens, minlength=self.vocab_size) > 1
        return [
            self._class_summary(i, tokens[rows], counts[rows], is_common, top)
            for i, rows in enumerate(self._class_rows)
        ]

    def _class_summary(
        self,
        i: int,
        tokens: NDArray[np.integer],
        counts: NDArray[np.integer],
        is_common: NDArray[np.bool_],
        top: int,
    ) -> ClassSummary:
        def words(chosen: NDArray[np.integer]) -> list[str]:
            return [self.vocabulary[token] for token in chosen[:top]]

        ranked = tokens[np.argsort(-counts, kind="stable")]
        query, next_token = divmod(int(self._grouping.pairs[i]), self.vocab_size)
        size = int(self._grouping.sizes[i])
        return ClassSummary(
            query=self.vocabulary[query],
            next=self.vocabulary[next_token],
            windows=size,
            weight=size / len(self),
            support=tokens.size,
            top=words(ranked),
            distinct=words(ranked[~is_common[ranked]]),
            common=words(ranked[is_common[ranked]]),
        )

    @cached_property
    def _grouping(self) -> _Grouping:
        pair = self.query.astype(np.int64) * self.vocab_size + self.next_token
        pairs, index, sizes = np.unique(pair, return_inverse=True, return_counts=True)
        order = np.argsort(-sizes, kind="stable")
        rank = np.empty_like(order)
        rank[order] = np.arange(order.size)
        return _Grouping(pairs[order], rank[index], sizes[order])

    @cached_property
    def _pooled(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Class, token and count of all that the classes' windows hold, sorted by the first two."""
        by_class = np.argsort(self.class_index, kind="stable")
        parts = []
        for chunk in _chunks(by_class, self.tokens.shape[1]):
            held = self.tokens[chunk] >= 0
            keys = self.class_index[chunk][:, None] * self.vocab_size + self.tokens[chunk]
            parts.append(_summed(keys[held], self.counts[chunk][held]))
        keys, sums = _summed(*(np.concatenate(part) for part in zip(*parts, strict=True)))
        return *np.divmod(keys, self.vocab_size), sums

    @property
    def _class_rows(self) -> list[slice]:
        ends = np.cumsum(np.bincount(self._pooled[0])).tolist()
        return [slice(start, end) for start, end in zip([0, *ends], ends, strict=False)]

    @cached_property
    def _classes(self) -> SequenceClasses:
        from scan_snap_ode.problem.classes import SequenceClasses

        pairs, sizes = self._grouping.pairs, self._grouping.sizes
        index, tokens, counts = self._pooled
        support = np.bincount(index)
        _check_table(support.size, support.max())
        held = _first(support, support.max())
        ids = np.full(held.shape, -1, dtype=np.int32)
        probs = np.zeros(held.shape)
        ids[held] = tokens
        probs[held] = counts / (sizes[index] * (self.context_length - 1))
        query, next_token = np.divmod(pairs, self.vocab_size)
        return SequenceClasses.from_sparse(
            ids,
            probs,
            query,
            next_token,
            sizes / len(self),
            vocab_size=self.vocab_size,
            words=self.vocabulary,
            origin=self.origin,
        )

    @cached_property
    def _window_classes(self) -> SequenceClasses:
        from scan_snap_ode.problem.classes import SequenceClasses

        _check_table(*self.tokens.shape)
        return SequenceClasses.from_sparse(
            self.tokens,
            self.counts / (self.context_length - 1),
            self.query,
            self.next_token,
            np.full(len(self), 1 / len(self)),
            vocab_size=self.vocab_size,
            words=self.vocabulary,
            origin=self.origin,
            pooled=self.classes(),
        )


@dataclass(frozen=True, eq=False)
class _Grouping:
    pairs: NDArray[np.int64]  # (N,) query * V + next token, by falling frequency
    index: NDArray[np.intp]  # (n,)
    sizes: NDArray[np.intp]  # (N,)


def windows(
    stream: TokenStream,
    context_length: int,
    query: Words = 4,
    next_token: Words = None,
    num_classes: int | None = None,
    vocab_size: int | None = None,
    words_only: bool = False,
    max_windows: int | None = None,
    seed: int = 0,
) -> Windows:
    """The windows of `stream` that end in a chosen query followed by a chosen next token.

    A window at position p has the contextual tokens p-T+1 .. p-1, the query token at p and the
    next token at p+1; windows cross lines, and a start of the text shorter than T is dropped.

    Args:
        stream: the text.
        context_length: T >= 2, which counts the query: T-1 contextual tokens.
        query: how many of the most frequent words, one word, several words, or None for all.
        next_token: the same, where the most frequent are those that most often follow the
            queries.
        num_classes: keep the windows of this many most frequent (query, next) pairs.
        vocab_size: V >= 2 words stay, the most frequent ones, `<unk>` and `<eos>` counted where
            the text has them; the rest become `<unk>`, which takes the last place if it is not
            among those that stay. None: all words. The new ids follow the words' frequencies
            before this merging.
        words_only: automatic choices (a number or None) take words of letters alone.
        max_windows: keep that many, drawn uniformly without replacement.
        seed: of that draw, for NumPy's `default_rng`.

    `<unk>` is never a query or a next token; `<eos>` may be. A number above what there is takes
    all; equally frequent words and pairs are taken by lower id. Temporary arrays stay small
    beside the stream and the result.

    Raises:
        ValueError: a value out of its range; a stream shorter than T+1; a word that is not in the
            vocabulary, or is `<unk>`; no window that matches.
    """
    if not isinstance(stream, TokenStream):
        raise ValueError(f"stream must be a TokenStream (see load_corpus), was {type(stream)}.")
    width = at_least(2, "context_length", context_length) - 1
    if len(stream) < width + 2:
        raise ValueError(
            f"stream must hold context_length + 1 = {width + 2} tokens or more, "
            f"{stream.name} holds {len(stream)}."
        )
    ids, vocabulary = cut_vocabulary(stream, vocab_size)
    chooser = Chooser(stream, vocabulary, words_only)
    ending, following = ids[width:-1], ids[width + 1 :]
    queries = chooser.mask("query", query, ids)
    of_query = queries[ending]
    nexts = chooser.mask("next_token", next_token, following[of_query])
    starts = np.flatnonzero(of_query & nexts[following])
    if not starts.size:
        raise ValueError(chooser.no_windows(width + 1, queries, ending))
    if num_classes is not None:
        pairs = ending[starts].astype(np.int64) * len(vocabulary) + following[starts]
        starts = starts[_in_frequent_pair(pairs, at_least(1, "num_classes", num_classes))]
    if max_windows is not None:
        starts = _drawn(starts, at_least(1, "max_windows", max_windows), seed)
    tokens, counts = count_windows(ids, starts, width)
    arrays = tokens, counts, ending[starts], following[starts]
    for values in arrays:
        values.flags.writeable = False
    return Windows(*arrays, vocabulary, width + 1, stream.name, stream.md5)


def cut_vocabulary(
    stream: TokenStream, vocab_size: int | None
) -> tuple[NDArray[np.int32], tuple[str, ...]]:
    """The stream's ids and words when the `vocab_size` most frequent words stay and the rest become
    <unk>, which counts; the ids by falling frequency."""
    size = len(stream.vocabulary)
    kept = np.argsort(-np.bincount(stream.ids, minlength=size), kind="stable")
    if vocab_size is not None:
        kept = kept[: at_least(2, "vocab_size", vocab_size)]
    words = [stream.vocabulary[i] for i in kept]
    new = np.zeros(size, dtype=np.int32)
    if len(words) < size:
        if UNK not in words:
            words[-1] = UNK
        new[:] = words.index(UNK)
    new[kept] = np.arange(kept.size)
    return new[stream.ids], tuple(words)


def _in_frequent_pair(pairs: NDArray[np.int64], num_classes: int) -> NDArray[np.bool_]:
    _, index, sizes = np.unique(pairs, return_inverse=True, return_counts=True)
    return np.isin(index, np.argsort(-sizes, kind="stable")[:num_classes])


def _drawn(starts: NDArray[np.intp], max_windows: int, seed: int) -> NDArray[np.intp]:
    if max_windows >= starts.size:
        return starts
    rng = np.random.default_rng(seed)
    return starts[np.sort(rng.choice(starts.size, max_windows, replace=False, shuffle=False))]


def count_windows(
    ids: NDArray[np.int32], starts: NDArray[np.intp], width: int
) -> tuple[NDArray[np.int32], NDArray[np.unsignedinteger]]:
    """`tokens` and `counts`, as in `Windows`, of the `width` ids from each start; one at least."""
    views = sliding_window_view(ids, width)
    # Sorting twice costs less than holding all runs, or windows of full width, until the
    # largest number of distinct tokens is known.
    most = max(
        int(_run_starts(np.sort(views[chunk])).sum(axis=1).max())
        for chunk in _chunks(starts, width)
    )
    tokens = np.full((starts.size, most), -1, dtype=np.int32)
    counts = np.zeros(tokens.shape, dtype=np.uint16 if width < 2**16 - 1 else np.uint32)
    done = 0
    for chunk in _chunks(starts, width):
        rows = slice(done, done := done + chunk.size)
        ordered = np.sort(views[chunk])
        first = _run_starts(ordered)
        held = _first(first.sum(axis=1), most)
        tokens[rows][held] = ordered[first]
        counts[rows][held] = np.diff(np.flatnonzero(first), append=first.size)
    return tokens, counts


def _run_starts(ordered: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Where a value differs from its left neighbour; every row starts a run."""
    starts = np.ones(ordered.shape, dtype=bool)
    np.not_equal(ordered[:, 1:], ordered[:, :-1], out=starts[:, 1:])
    return starts


def _first(lengths: NDArray[np.integer], columns: int) -> NDArray[np.bool_]:
    """(rows, columns) true for the first `lengths[row]` columns."""
    return np.arange(columns) < lengths[:, None]


def _check_table(rows: int, columns: int) -> None:
    if rows * columns > _LARGEST_TABLE:
        raise ValueError(
            f"{rows} classes of up to {columns} tokens each are too many for one table of "
            f"{_LARGEST_TABLE} entries: lower num_classes, max_windows or vocab_size."
        )


def _chunks(indices: NDArray[np.intp], width: int) -> Iterator[NDArray[np.intp]]:
    rows = max(1, _CHUNK // width)
    return (indices[start : start + rows] for start in range(0, indices.size, rows))


def _summed(
    keys: NDArray[np.int64], counts: NDArray[Any]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct keys, rising, and the sum of each one's counts."""
    distinct, index = np.unique(keys, return_inverse=True)
    return distinct, np.bincount(index, weights=counts).astype(np.int64)
