"""From a line of text to its tokens."""

import re
from collections.abc import Callable, Iterable
from typing import Any, Protocol, cast

EOS = "<eos>"

_WORD_OR_MARK = re.compile(r"\w+|[^\w\s]")


class Encoder(Protocol):
    """What the `tokenizers` library offers: `encode(text)` returns an object with `.tokens`."""

    def encode(self, sequence: str, /) -> Any: ...


LineTokenizer = Callable[[str], Iterable[str]]
Tokenizer = str | LineTokenizer | Encoder


def whitespace(line: str) -> list[str]:
    """The pieces of `line` between white space, then one `<eos>` (also for an empty line)."""
    return [*line.split(), EOS]


def words(line: str) -> list[str]:
    r"""Lower-case words and punctuation of `line`, each a token; white space is dropped.

    A word is a run of letters, digits and underscores (`\w+`); every other visible character is
    a token by itself: `"Don't x_1!"` gives `don`, `'`, `t`, `x_1`, `!`.
    """
    return _WORD_OR_MARK.findall(line.lower())


_NAMED: dict[str, LineTokenizer] = {"whitespace": whitespace, "words": words}


def as_line_tokenizer(tokenizer: Tokenizer) -> LineTokenizer:
    """The function from a line to its tokens that `tokenizer` stands for.

    `tokenizer` is `"whitespace"`, `"words"`, an object with `encode(text)` whose result has
    `.tokens` (a `tokenizers.Tokenizer`), or a callable from a line (without its line break) to an
    iterable of strings. Raises ValueError for anything else.
    """
    if isinstance(tokenizer, str) and tokenizer in _NAMED:
        return _NAMED[tokenizer]
    # Before callables: the tokenizers of `transformers` are callable but return no tokens.
    if not isinstance(tokenizer, str) and hasattr(tokenizer, "encode"):
        return _encoded(cast(Encoder, tokenizer))
    if callable(tokenizer):
        return tokenizer
    raise ValueError(
        "tokenizer must be 'whitespace', 'words', a callable from a line to its tokens or an "
        f"object with encode(text).tokens, was {tokenizer!r}."
    )


def _encoded(encoder: Encoder) -> LineTokenizer:
    def tokenize(line: str) -> Iterable[str]:
        encoding = encoder.encode(line)
        if not hasattr(encoding, "tokens"):
            raise ValueError(
                "tokenizer.encode(text) must return an object with .tokens (as the tokenizers "
                f"library does), was {type(encoding).__name__}; pass a callable from a line to "
                "its tokens instead."
            )
        return encoding.tokens

    return tokenize
