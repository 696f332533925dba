"""Corpora as streams of token ids: WikiText, the Python reference, text files, arrays of ids."""

import bz2
import gzip
import hashlib
import io
import lzma
import os
import zlib
from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scan_snap_ode.streams.tokenizers import LineTokenizer, Tokenizer, as_line_tokenizer

_PYTHON_REFERENCE = "python-reference"
_WIKITEXT = {"wikitext-2": "wikitext-2-v1", "wikitext-103": "wikitext-103-v1"}
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}
_OPENERS: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}
# A .npy names every id up to its largest: one wild id must not cost gigabytes of words.
_LARGEST_ID = 9_999_999

_md5 = partial(hashlib.md5, usedforsecurity=False)


@dataclass(frozen=True, eq=False, repr=False)
class TokenStream:
    """A text as token ids, uncut.

    Attributes:
        ids: (n,) int32, read-only: the text, token by token.
        vocabulary: the distinct words; `vocabulary[i]` is the word of id `i`. `load_corpus`
            orders them by falling frequency, then first appearance (arrays of ids: by id).
        name: what the text is called in reports.
        md5: hex digest of the uncompressed bytes that were read.

    Raises ValueError if `ids` is not a non-empty 1-D array of integers from 0 to
    `len(vocabulary) - 1`, or a word is repeated or not a string.
    """

    ids: NDArray[np.int32]
    vocabulary: tuple[str, ...]
    name: str = "tokens"
    md5: str = ""

    def __post_init__(self) -> None:
        ids = _checked_ids(self.ids, "ids")
        words = tuple(self.vocabulary)
        if not all(isinstance(word, str) for word in words) or len(set(words)) < len(words):
            raise ValueError("vocabulary must be distinct strings, was not.")
        if ids.max() >= len(words):
            raise ValueError(f"ids must be below {len(words)} (the words), was {ids.max()}.")
        ids = ids.astype(np.int32, copy=False).view()
        ids.flags.writeable = False
        object.__setattr__(self, "ids", ids)
        object.__setattr__(self, "vocabulary", words)

    def __len__(self) -> int:
        return self.ids.size

    def __repr__(self) -> str:
        return card(
            "TokenStream",
            {
                "name": self.name,
                "tokens": f"{len(self):,}",
                "vocabulary": f"{len(self.vocabulary):,}",
                "md5": self.md5,
            },
        )


def load_corpus(
    name_or_path: str | os.PathLike[str],
    split: str = "train",
    tokenizer: Tokenizer | None = None,
    folder: str | os.PathLike[str] | None = None,
) -> TokenStream:
    """Read a corpus, line by line, into a `TokenStream`.

    Args:
        name_or_path: one of
            - `"python-reference"`: the text of Python's own `help()` topics, embedded in every
              Python (and different in each version: see the stream's md5);
            - `"wikitext-2"`, `"wikitext-103"`: the word-level WikiText releases;
            - a text file in UTF-8, plain or `.gz`, `.xz`, `.bz2`;
            - a `.npy` of token ids, 1-D integers from 0; its vocabulary is `"0"`, `"1"`, ...
        split: `"train"`, `"valid"` or `"test"` of WikiText; corpora with one text have
            `"train"` alone, which means all of it.
        tokenizer: `"whitespace"`, `"words"`, a callable from a line (without its line break) to
            its tokens, or an object with `encode(text).tokens` such as a `tokenizers.Tokenizer`.
            None: `"whitespace"` (with one `<eos>` a line: the published counts) for WikiText
            and files named `*.tokens*`, `"words"` for other text.
        folder: where WikiText lies, as `<folder>/<name>/wiki.<split>.tokens` or
            `<folder>/wiki.<split>.tokens`, plain, `.xz` or `.gz`. None: `$SCAN_SNAP_DATA`.

    WikiText not found there is asked of the optional `datasets` library (extra `data`), one line
    a row. That path is tested with a stand-in module and was never run against the network; the
    stream's md5 tells: it equals the published file's.

    Raises:
        ValueError: an unknown name or split; a file that is missing, a directory, empty, binary,
            not UTF-8, truncated or corrupt; a `.npy` of anything but token ids; WikiText that
            is neither in the folder nor available through `datasets`.
    """
    if not isinstance(name_or_path, str | os.PathLike):
        raise ValueError(f"name_or_path must be a string or a path, was {name_or_path!r}.")
    if split not in tuple(_SPLITS):
        raise ValueError(f"split must be one of {', '.join(map(repr, _SPLITS))}, was {split!r}.")
    if isinstance(name_or_path, str) and name_or_path in _WIKITEXT:
        return _wikitext(name_or_path, split, tokenizer, folder)
    embedded = name_or_path == _PYTHON_REFERENCE
    path = None if embedded else _existing_file(name_or_path)
    if split != "train":
        raise ValueError(
            f"split must be 'train' for {name_or_path}, which is one text, was {split!r}."
        )
    if path is None:
        return _encode(_python_reference(), _PYTHON_REFERENCE, tokenizer or "words")
    if path.suffix.lower() == ".npy":
        return _read_ids(path, tokenizer)
    default = "whitespace" if fnmatch(path.name, "*.tokens*") else "words"
    name = path.name.encode("utf-8", "replace").decode()  # bytes that are no text become "?"
    return _encode(_lines(path), name, tokenizer or default)


def card(title: str, rows: Mapping[str, str]) -> str:
    """A title and its rows, the values aligned: what the `repr` of streams and windows print."""
    width = max(map(len, rows)) + 2
    return "\n".join([title, *(f"  {name:<{width}}{value}" for name, value in rows.items())])


def _existing_file(name_or_path: str | os.PathLike[str]) -> Path:
    path = Path(name_or_path)
    if path.is_dir():
        raise ValueError(f"name_or_path must be a file, was a directory: {path}.")
    if not path.is_file():
        names = ", ".join([_PYTHON_REFERENCE, *_WIKITEXT])
        raise ValueError(
            f"name_or_path must be one of {names} or a file; file not found: {name_or_path}."
        )
    return path


def _python_reference() -> Iterable[bytes]:
    from pydoc_data.topics import topics  # half a megabyte, of use to this corpus alone

    return io.BytesIO("\n".join(topics[key] for key in sorted(topics)).encode())


def _wikitext(
    name: str, split: str, tokenizer: Tokenizer | None, folder: str | os.PathLike[str] | None
) -> TokenStream:
    folder = folder if folder is not None else os.environ.get("SCAN_SNAP_DATA") or None
    path = None if folder is None else _wikitext_file(Path(folder), name, split)
    lines = _dataset_lines(name, split, folder) if path is None else _lines(path)
    return _encode(lines, f"{name}-{split}", tokenizer or "whitespace")


def _wikitext_file(folder: Path, name: str, split: str) -> Path | None:
    if not folder.is_dir():
        raise ValueError(f"folder (or $SCAN_SNAP_DATA) must be a directory, was {folder}.")
    paths = (
        place / f"wiki.{split}.tokens{suffix}"
        for place in (folder / name, folder)
        for suffix in ("", ".xz", ".gz")
    )
    return next(filter(Path.is_file, paths), None)


def _dataset_lines(name: str, split: str, folder: str | os.PathLike[str] | None) -> Iterator[bytes]:
    remedy = (
        "set folder= or $SCAN_SNAP_DATA to a folder that holds "
        f"{name}/wiki.{split}.tokens (or .xz, .gz)"
        + (f", which {folder} does not" if folder is not None else "")
    )
    try:
        from datasets import load_dataset  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise ValueError(
            f"{name} was not found: install 'scan-snap-ode[data]' to download it, or {remedy}."
        ) from error
    try:
        rows = load_dataset("Salesforce/wikitext", _WIKITEXT[name], split=_SPLITS[split])
    except OSError as error:
        raise ValueError(f"{name} could not be downloaded ({error}); {remedy}.") from error
    for row in rows:
        # Every line of the files ends in a space; the library's blank rows have lost it.
        yield (row["text"].rstrip(" \n") + " \n").encode()


def _lines(path: Path) -> Iterator[bytes]:
    with _OPENERS.get(path.suffix.lower(), open)(path, "rb") as file:
        try:
            yield from file
        except (EOFError, OSError, zlib.error, lzma.LZMAError) as error:
            raise ValueError(f"{path} is truncated or corrupt: {error}.") from error


def _encode(lines: Iterable[bytes], name: str, tokenizer: Tokenizer) -> TokenStream:
    tokenize = as_line_tokenizer(tokenizer)
    digest = _md5()
    ids = array("i")
    table: defaultdict[str, int] = defaultdict()
    table.default_factory = table.__len__  # a new word gets the next id
    for line in _decoded(lines, name, digest.update):
        ids.extend(map(table.__getitem__, _tokens(tokenize, line)))
    if not ids:
        raise ValueError(f"{name} must hold text, was empty (no tokens).")
    words = _checked_words(table)
    seen = np.frombuffer(ids, dtype=np.intc)
    order = np.argsort(-np.bincount(seen), kind="stable")
    rank = np.empty(order.size, dtype=np.int32)
    rank[order] = np.arange(order.size)
    return TokenStream(rank[seen], tuple(words[i] for i in order), name, digest.hexdigest())


def _decoded(lines: Iterable[bytes], name: str, see: Callable[[bytes], None]) -> Iterator[str]:
    offset = 0
    for number, line in enumerate(lines, 1):
        see(line)
        nul = line.find(b"\0")
        if nul >= 0:
            raise ValueError(
                f"{name} must be text, was binary: NUL byte at {offset + nul} (line {number})."
            )
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            raise ValueError(
                f"{name} must be UTF-8: {error.reason} at byte {offset + error.start} "
                f"(line {number})."
            ) from error
        offset += len(line)
        yield text.removeprefix("\ufeff").rstrip("\r\n")


def _tokens(tokenize: LineTokenizer, line: str) -> Iterable[str]:
    tokens = tokenize(line)
    if not isinstance(tokens, Iterable):
        raise ValueError(f"tokenizer must return an iterable of strings, was {tokens!r}.")
    return tokens


def _checked_words(table: Iterable[Any]) -> list[str]:
    words = list(table)
    for word in words:
        if not isinstance(word, str):
            raise ValueError(f"tokenizer must return strings, among them was {word!r}.")
    return words


def _read_ids(path: Path, tokenizer: Tokenizer | None) -> TokenStream:
    if tokenizer is not None:
        raise ValueError(f"tokenizer must be None for {path}, whose tokens are ids already.")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, _md5).hexdigest()
        file.seek(0)
        try:
            ids = np.lib.format.read_array(file, allow_pickle=False)
        except ValueError as error:
            raise ValueError(f"{path} must be a .npy of integers: {error}.") from error
    ids = _checked_ids(ids, str(path))
    if ids.max() > _LARGEST_ID:
        raise ValueError(f"{path} must hold ids up to {_LARGEST_ID}, was {ids.max()}.")
    return TokenStream(
        ids.astype(np.int32), tuple(map(str, range(int(ids.max()) + 1))), path.name, digest
    )


def _checked_ids(ids: Any, name: str) -> NDArray[np.integer]:
    ids = np.asarray(ids)
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"{name} must be 1-D integers, was {ids.dtype} of shape {ids.shape}.")
    if not ids.size:
        raise ValueError(f"{name} must hold token ids, was empty (no tokens).")
    if ids.min() < 0:
        raise ValueError(f"{name} must be token ids from 0, was {ids.min()}.")
    return ids
