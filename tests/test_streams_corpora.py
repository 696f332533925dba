"""Corpora are read as published, whatever they are stored in, and errors say what is wrong."""

import bz2
import gzip
import hashlib
import lzma
import os
import pickle
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scan_snap_ode.streams import TokenStream, load_corpus, whitespace, words
from scan_snap_ode.streams.tokenizers import as_line_tokenizer

# Tokens with one <eos> a line, vocabulary with <eos>, md5 of the file (Merity et al. 2016).
PUBLISHED = {
    "train": (2_088_628, 33_278, "34a77ebe59551b3a3b3d8c0a2797c976"),
    "valid": (217_646, 13_777, "d756d22ab2310e7e60c094bea5c5a8eb"),
    "test": (245_569, 14_143, "781c9418ab9414bd09e4aad825aae752"),
}
TEXT = "The cat sat.\n\nThe dog, the cat: naïve_1!\n"
BYTES = TEXT.encode()


@pytest.fixture
def write(tmp_path):
    """Writes bytes to a file of that name, and returns its path."""

    def write(name: str, content: bytes) -> Path:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    return write


@pytest.fixture
def no_data(monkeypatch):
    """No folder in the environment and no `datasets` library."""
    monkeypatch.delenv("SCAN_SNAP_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)


def read(stream: TokenStream) -> list[str]:
    return [stream.vocabulary[i] for i in stream.ids]


# ------------------------------------------------------------------------------- what is read


@pytest.mark.parametrize("split", PUBLISHED)
def test_wikitext_2_has_the_published_counts_and_md5(split):
    if not os.environ.get("SCAN_SNAP_DATA"):
        pytest.skip("SCAN_SNAP_DATA is not set: no WikiText-2 to read")
    stream = load_corpus("wikitext-2", split)
    assert (len(stream), len(stream.vocabulary), stream.md5) == PUBLISHED[split]
    assert stream.name == f"wikitext-2-{split}"


def test_python_reference_is_the_text_of_help():
    from pydoc_data.topics import topics

    text = "\n".join(topics[key] for key in sorted(topics))
    stream = load_corpus("python-reference")
    assert read(stream) == words(text)
    assert stream.md5 == hashlib.md5(text.encode()).hexdigest()


def test_words_are_lower_case_runs_and_single_marks(write):
    assert words("Don't x_1, ÉTÉ!!") == ["don", "'", "t", "x_1", ",", "été", "!", "!"]
    stream = load_corpus(write("a.txt", BYTES))
    expected = ["the", "cat", "sat", ".", "the", "dog", ",", "the", "cat", ":", "naïve_1", "!"]
    assert read(stream) == expected
    assert stream.name == "a.txt"


def test_tokens_files_are_split_at_white_space_with_one_eos_a_line(write):
    assert whitespace(" a  B \t") == ["a", "B", "<eos>"]
    assert whitespace("") == ["<eos>"]
    expected = ["The", "cat", "sat.", "<eos>", "<eos>"]
    expected += ["The", "dog,", "the", "cat:", "naïve_1!", "<eos>"]
    assert read(load_corpus(write("a.tokens", BYTES))) == expected
    assert read(load_corpus(write("b.txt", BYTES), tokenizer="whitespace")) == expected
    assert read(load_corpus(write("c.tokens", BYTES), tokenizer="words")) == words(TEXT)


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
@pytest.mark.parametrize("name", ["a.txt", "a.tokens"])
def test_compressed_files_give_the_stream_of_the_plain_file(write, suffix, compress, name):
    plain = load_corpus(write(name, BYTES))
    packed = load_corpus(write(name + suffix, compress(BYTES)))
    assert np.array_equal(packed.ids, plain.ids)
    assert packed.vocabulary == plain.vocabulary
    assert packed.md5 == plain.md5 == hashlib.md5(BYTES).hexdigest()


@settings(deadline=None)
@given(text=st.text("ab\n\r é,", min_size=1).filter(str.strip))
def test_vocabulary_falls_in_frequency_then_stands_by_first_appearance(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("text") / "a.txt"
    path.write_bytes(text.encode())
    stream = load_corpus(path)
    tokens = [token for line in text.split("\n") for token in words(line)]
    assert read(stream) == tokens
    # Counter.most_common keeps equal counts in order of appearance.
    assert list(stream.vocabulary) == [word for word, _ in Counter(tokens).most_common()]


def test_line_breaks_and_the_byte_order_mark_are_no_part_of_a_line(write):
    seen = []
    path = write("a.txt", b"\xef\xbb\xbfab\r\n\ncd")
    stream = load_corpus(path, tokenizer=lambda line: seen.append(line) or list(line))
    assert seen == ["ab", "", "cd"]
    assert read(stream) == list("abcd")


def test_an_encoder_of_the_tokenizers_library(write):
    tokenizers = pytest.importorskip("tokenizers")
    vocabulary = {"cat": 0, "the": 1, "[UNK]": 2}
    encoder = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="[UNK]"))
    encoder.normalizer = tokenizers.normalizers.Lowercase()
    encoder.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    stream = load_corpus(write("a.txt", b"The cat\nsaw the dog"), tokenizer=encoder)
    assert read(stream) == ["the", "cat", "[UNK]", "the", "[UNK]"]


def test_ids_of_a_npy_keep_their_numbers_as_words(tmp_path):
    path = tmp_path / "ids.npy"
    np.save(path, np.array([3, 0, 3, 1], dtype=np.uint16))
    stream = load_corpus(path)
    assert stream.vocabulary == ("0", "1", "2", "3")
    assert stream.ids.tolist() == [3, 0, 3, 1]
    assert stream.ids.dtype == np.int32
    assert stream.md5 == hashlib.md5(path.read_bytes()).hexdigest()


def test_a_stream_prints_what_it_is(write):
    stream = load_corpus(str(write("a.txt", BYTES)))
    assert repr(stream).splitlines() == [
        "TokenStream",
        "  name        a.txt",
        "  tokens      12",
        "  vocabulary  9",
        f"  md5         {stream.md5}",
    ]
    assert not stream.ids.flags.writeable


# ------------------------------------------------------------------------- where WikiText lies


@pytest.mark.parametrize("place", ["wikitext-103/wiki.valid.tokens", "wiki.valid.tokens"])
@pytest.mark.parametrize(
    ("suffix", "pack"), [("", bytes), (".xz", lzma.compress), (".gz", gzip.compress)]
)
def test_wikitext_is_found_in_a_folder(write, tmp_path, monkeypatch, no_data, place, suffix, pack):
    write(place + suffix, pack(b" a b \n \n"))
    by_argument = load_corpus("wikitext-103", "valid", folder=tmp_path)
    monkeypatch.setenv("SCAN_SNAP_DATA", str(tmp_path))
    by_environment = load_corpus("wikitext-103", "valid")
    assert read(by_argument) == read(by_environment) == ["a", "b", "<eos>", "<eos>"]


@pytest.mark.parametrize("has_folder", [True, False])
def test_datasets_give_the_stream_of_the_file(write, tmp_path, monkeypatch, no_data, has_folder):
    content = b" \n = Lobster = \n \n The lobster is <unk> . \n"
    asked = []

    def load_dataset(*args: str, **options: str) -> list[dict[str, str]]:
        asked.append((args, options))
        lines = content.decode().splitlines(keepends=True)
        return [{"text": line if line.strip() else ""} for line in lines]  # as the library does

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    folder = tmp_path / "empty"
    folder.mkdir()
    stream = load_corpus("wikitext-2", "valid", folder=folder if has_folder else None)
    file = load_corpus(write("wiki.valid.tokens", content))
    assert asked == [(("Salesforce/wikitext", "wikitext-2-v1"), {"split": "validation"})]
    assert read(stream) == read(file)
    assert (stream.md5, stream.vocabulary) == (file.md5, file.vocabulary)


def test_without_datasets_both_remedies_are_named(no_data, tmp_path):
    remedies = r"scan-snap-ode\[data\].*SCAN_SNAP_DATA.*wikitext-2/wiki\.test\.tokens"
    with pytest.raises(ValueError, match=remedies):
        load_corpus("wikitext-2", "test")
    with pytest.raises(ValueError, match=rf"{remedies}.*{tmp_path.name} does not"):
        load_corpus("wikitext-2", "test", folder=tmp_path)


def test_a_failed_download_names_the_other_way(no_data, monkeypatch):
    def load_dataset(*args: str, **options: str) -> None:
        raise ConnectionError("no route")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(ValueError, match=r"downloaded \(no route\); set folder="):
        load_corpus("wikitext-2")


def test_folder_must_be_a_directory(no_data, tmp_path):
    with pytest.raises(ValueError, match=r"folder .* must be a directory, was .*absent"):
        load_corpus("wikitext-2", folder=tmp_path / "absent")


# --------------------------------------------------------------------------------------- errors


def test_names_splits_and_tokenizers_are_checked(write, tmp_path):
    path = write("a.txt", BYTES)
    with pytest.raises(ValueError, match=r"python-reference, wikitext-2.*not found: wikitext2"):
        load_corpus("wikitext2")
    with pytest.raises(ValueError, match=r"not found: .*absent\.txt"):
        load_corpus(tmp_path / "absent.txt", split="valid")
    with pytest.raises(ValueError, match="must be a string or a path, was 3"):
        load_corpus(cast(Any, 3))
    with pytest.raises(ValueError, match="must be a file, was a directory"):
        load_corpus(tmp_path)
    with pytest.raises(ValueError, match="'train', 'valid', 'test', was 'validation'"):
        load_corpus("wikitext-2", split="validation")
    for one_text in ("python-reference", path):
        with pytest.raises(ValueError, match=r"must be 'train' for .* one text, was 'test'"):
            load_corpus(one_text, split="test")
    for wrong in ("bpe", 7):
        with pytest.raises(ValueError, match=f"'whitespace', 'words', a callable.*was {wrong!r}"):
            load_corpus(path, tokenizer=cast(Any, wrong))


@pytest.mark.parametrize(
    ("tokenizer", "message"),
    [
        (len, "an iterable of strings, was 12"),
        (lambda line: map(ord, line), "strings, among them was 84"),
        (SimpleNamespace(encode=lambda text: [1, 2]), r"object with \.tokens.*was list"),
    ],
)
def test_what_a_tokenizer_returns_is_checked(write, tokenizer, message):
    with pytest.raises(ValueError, match=message):
        load_corpus(write("a.txt", BYTES), tokenizer=tokenizer)


def test_an_encoder_that_can_be_called_is_an_encoder():
    class Both:
        def __call__(self, line: str) -> dict[str, int]:
            return {"input_ids": 1}

        def encode(self, line: str) -> SimpleNamespace:
            return SimpleNamespace(tokens=["x"])

    assert as_line_tokenizer(Both())("any") == ["x"]


@pytest.mark.parametrize("content", [b"", b" \n\n"])
def test_a_file_without_tokens(write, content):
    with pytest.raises(ValueError, match=r"a\.txt must hold text, was empty \(no tokens\)"):
        load_corpus(write("a.txt", content))


def test_a_file_that_is_no_text(write):
    with pytest.raises(ValueError, match=r"a\.txt.*was binary: NUL byte at 5 \(line 2\)"):
        load_corpus(write("a.txt", b"ab\ncd\0e"))
    with pytest.raises(ValueError, match=r"b\.txt must be UTF-8: .* at byte 4 \(line 2\)"):
        load_corpus(write("b.txt", b"ab\nc\xe9d\n"))


@pytest.mark.parametrize(
    ("suffix", "compress"), [(".gz", gzip.compress), (".xz", lzma.compress), (".bz2", bz2.compress)]
)
def test_a_compressed_file_that_is_damaged(write, suffix, compress):
    rng = np.random.default_rng(0)
    whole = compress(rng.choice(list(b"abc \n"), 100_000).astype(np.uint8).tobytes())
    damaged = {"cut": whole[:-20], "spoilt": whole[:12] + b"\xff" * 99, "not": b"just text\n" * 9}
    for name, content in damaged.items():
        with pytest.raises(ValueError, match=rf"{name}\.txt\{suffix} is truncated or corrupt"):
            load_corpus(write(f"{name}.txt{suffix}", content))
    flipped = bytearray(whole)
    flipped[len(whole) // 2] ^= 0xFF
    # bzip2 hands out a damaged block before it checks it: then the text itself gives it away.
    with pytest.raises(ValueError, match=r"flipped.*(is truncated or corrupt|binary|UTF-8)"):
        load_corpus(write(f"flipped.txt{suffix}", bytes(flipped)))


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        (np.zeros((2, 2), int), r"1-D integers, was int64 of shape \(2, 2\)"),
        (np.zeros(3), "1-D integers, was float64"),
        (np.array([True]), "1-D integers, was bool"),
        (np.zeros(0, int), "was empty"),
        (np.array([1, -2]), "ids from 0, was -2"),
        (np.array([2**31]), "ids up to 9999999, was 2147483648"),
        (np.array([object()]), r"must be a \.npy of integers: .*allow_pickle=False"),
    ],
)
def test_a_npy_that_holds_no_token_ids(tmp_path, ids, message):
    np.save(tmp_path / "ids.npy", ids)
    with pytest.raises(ValueError, match=rf"ids\.npy .*{message}"):
        load_corpus(tmp_path / "ids.npy")


def test_a_npy_that_is_none(write, tmp_path):
    for content in (pickle.dumps([1, 2]), b"", b"PK\x03\x04"):
        with pytest.raises(ValueError, match=r"a\.npy must be a \.npy of integers"):
            load_corpus(write("a.npy", content))
    np.save(tmp_path / "b.npy", np.arange(100))
    whole = (tmp_path / "b.npy").read_bytes()
    with pytest.raises(ValueError, match=r"b\.npy must be a \.npy of integers"):
        load_corpus(write("b.npy", whole[:-8]))
    with pytest.raises(ValueError, match=r"tokenizer must be None for .*b\.npy"):
        load_corpus(write("b.npy", whole), tokenizer="words")


def test_a_stream_of_ones_own_is_checked():
    assert read(TokenStream(cast(Any, [1, 0]), ("a", "b"))) == ["b", "a"]
    with pytest.raises(ValueError, match=r"ids must be below 2 .*, was 2"):
        TokenStream(np.array([0, 2], np.int32), ("a", "b"))
    with pytest.raises(ValueError, match="distinct strings"):
        TokenStream(np.array([0, 1], np.int32), ("a", "a"))


def test_ones_own_ids_stay_writeable_to_their_owner():
    ids = np.array([0, 1], np.int32)
    TokenStream(ids, ("a", "b"))
    assert ids.flags.writeable
