"""Which words may be, and are, the queries and next tokens of windows."""

import difflib
from collections.abc import Iterable, Sequence
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scan_snap_ode.streams.corpora import TokenStream

UNK = "<unk>"

_SHOWN = 8  # words listed in a message or a repr
_LIKELY = 20_000  # words compared with a misspelt one: all of a large vocabulary take seconds

Words = str | int | Iterable[str] | None


class Chooser:
    """Turns what a user asked for into the words that are chosen, or into a message."""

    def __init__(self, stream: TokenStream, vocabulary: tuple[str, ...], words_only: bool):
        self.stream = stream
        self.vocabulary = vocabulary
        self.words_only = words_only
        self.automatic = np.array(
            [word != UNK and (word.isalpha() or not words_only) for word in vocabulary]
        )

    def mask(self, name: str, choice: Words, among: NDArray[np.int32]) -> NDArray[np.bool_]:
        """(V,) whether each word is chosen; `among` are the tokens that frequencies count."""
        if choice is None:
            return self.automatic
        chosen = np.zeros(len(self.vocabulary), dtype=bool)
        if isinstance(choice, Integral):
            counts = np.bincount(among, minlength=chosen.size) * self.automatic
            ranked = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
            chosen[ranked[: at_least(1, name, choice)]] = True
        else:
            chosen[self._ids(name, choice)] = True
        return chosen

    def _ids(self, name: str, choice: Any) -> list[int]:
        named = [choice] if isinstance(choice, str) else choice
        named = list(named) if isinstance(named, Iterable) else []
        if not named or not all(isinstance(word, str) for word in named):
            raise ValueError(
                f"{name} must be an integer of at least 1, a word, several words or None, "
                f"was {choice!r}."
            )
        id_of = {word: i for i, word in enumerate(self.vocabulary)}
        for word in named:
            if word == UNK or word not in id_of:
                raise ValueError(self._not_a_choice(name, word))
        return [id_of[word] for word in named]

    def _not_a_choice(self, name: str, word: str) -> str:
        if word == UNK:
            return f"{name} must not be {UNK}, which stands for many words."
        if word in self.stream.vocabulary:
            size = len(self.vocabulary)
            return f"{name} {word!r} is not among the {size} words that vocab_size keeps."
        likely = self.vocabulary[:_LIKELY]
        near = difflib.get_close_matches(word, likely, n=3) or likely[:3]
        some = listed([repr(word) for word in near])
        return f"{name} {word!r} is not a word of {self.stream.name}; some are {some}."

    def no_windows(
        self, context_length: int, queries: NDArray[np.bool_], ending: NDArray[np.int32]
    ) -> str:
        """The message when no window ends in one of `queries` and a chosen next token."""
        counts = np.bincount(ending, minlength=queries.size) * queries
        ranked = np.argsort(-counts, kind="stable")[: np.count_nonzero(counts)]
        found = [f"{self.vocabulary[i]!r} ({counts[i]} positions)" for i in ranked]
        return (
            f"no windows of {context_length} tokens match: {self.stream.name} has "
            f"{len(self.stream)} tokens, the queries found are {listed(found) or 'none'}, "
            "and none of next_token follows them."
            + (" (words_only leaves out all but letters.)" if self.words_only else "")
        )


def at_least(least: int, name: str, value: Any) -> int:
    """`value` as an int, or a ValueError that names it."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ValueError(f"{name} must be an integer of at least {least}, was {value!r}.")
    return int(value)


def listed(words: Sequence[str], between: str = ", ") -> str:
    """The first few words, and how many there are if that is more."""
    more = [f"... ({len(words):,} in all)"] if len(words) > _SHOWN else []
    return between.join([*words[:_SHOWN], *more])
