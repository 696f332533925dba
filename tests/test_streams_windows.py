"""Windows against their definition in plain Python, on random streams and on WikiText."""

import os
import sys
import tracemalloc
from collections import Counter
from typing import Any, NamedTuple, cast

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scan_snap_ode.streams import TokenStream, Windows, load_corpus, windows

windows_module = sys.modules["scan_snap_ode.streams.windows"]
UNK = "<unk>"


def stream_of(text: str) -> TokenStream:
    """Words of one letter; `?` stands for <unk>. Ids by first appearance, not by frequency."""
    tokens = [UNK if letter == "?" else letter for letter in text]
    vocabulary = tuple(dict.fromkeys(tokens))
    ids = np.array([vocabulary.index(token) for token in tokens], np.int32)
    return TokenStream(ids, vocabulary, "letters", "0" * 32)


# --------------------------------------------------------------------------- the definition


class Window(NamedTuple):
    query: str
    next: str
    counts: Counter[str]


def reference(
    stream, context_length, query, next_token, num_classes, vocab_size, words_only
) -> tuple[list[str], list[Window]]:
    """Vocabulary and windows, by the definition."""
    tokens = [stream.vocabulary[i] for i in stream.ids]
    number = Counter(tokens)
    vocabulary = sorted(
        stream.vocabulary, key=lambda word: (-number[word], stream.vocabulary.index(word))
    )
    if vocab_size is not None and vocab_size < len(vocabulary):
        vocabulary = vocabulary[:vocab_size]
        if UNK not in vocabulary:
            vocabulary[-1] = UNK
        tokens = [token if token in vocabulary else UNK for token in tokens]
    rank = vocabulary.index
    allowed = [w for w in vocabulary if w != UNK and (w.isalpha() or not words_only)]

    def chosen(choice, among):
        if choice is None:
            return allowed
        if isinstance(choice, int):
            found = Counter(token for token in among if token in allowed)
            return sorted(found, key=lambda word: (-found[word], rank(word)))[:choice]
        return list(choice)

    ends = range(context_length - 1, len(tokens) - 1)
    queries = chosen(query, tokens)
    ends = [p for p in ends if tokens[p] in queries]
    nexts = chosen(next_token, [tokens[p + 1] for p in ends])
    ends = [p for p in ends if tokens[p + 1] in nexts]
    pairs = Counter((tokens[p], tokens[p + 1]) for p in ends)
    ranked = sorted(pairs, key=lambda pair: (-pairs[pair], *map(rank, pair)))
    return vocabulary, [
        Window(tokens[p], tokens[p + 1], Counter(tokens[p - context_length + 1 : p]))
        for p in ends
        if (tokens[p], tokens[p + 1]) in ranked[:num_classes]
    ]


def read(found: Windows) -> list[Window]:
    words = found.vocabulary
    return [
        Window(
            words[query],
            words[following],
            Counter({words[t]: int(n) for t, n in zip(tokens, counts, strict=True) if n}),
        )
        for tokens, counts, query, following in zip(
            found.tokens, found.counts, found.query, found.next_token, strict=True
        )
    ]


@st.composite
def problems(draw) -> tuple[TokenStream, dict]:
    text = draw(st.text("abc.?", min_size=4, max_size=60))
    letters = sorted(set(text) - {"?"})
    named = st.lists(st.sampled_from(letters), min_size=1) if letters else st.none()
    choice = st.one_of(st.none(), st.integers(1, 4), named)
    cut = draw(st.one_of(st.none(), st.integers(2, 5)))
    arguments = {
        "context_length": draw(st.integers(2, len(text) - 1)),
        "query": draw(choice if cut is None else st.one_of(st.none(), st.integers(1, 4))),
        "next_token": draw(choice if cut is None else st.one_of(st.none(), st.integers(1, 4))),
        "num_classes": draw(st.one_of(st.none(), st.integers(1, 4))),
        "vocab_size": cut,
        "words_only": draw(st.booleans()),
    }
    return stream_of(text), arguments


@settings(max_examples=400, deadline=None)
@given(problem=problems())
def test_windows_are_those_of_the_definition(problem):
    stream, arguments = problem
    vocabulary, expected = reference(stream, **arguments)
    if not expected:
        with pytest.raises(ValueError, match="no windows"):
            windows(stream, **arguments)
        return
    found = windows(stream, **arguments)
    assert list(found.vocabulary) == vocabulary
    assert read(found) == expected
    held = found.counts > 0
    assert (found.counts.sum(axis=1) == arguments["context_length"] - 1).all()
    assert (held == (found.tokens >= 0)).all()
    assert held.sum(axis=1).max() == found.tokens.shape[1]
    assert (np.diff(held.astype(int)) <= 0).all(), "padding stands last"
    in_order = np.diff(found.tokens) > 0
    assert (in_order | ~held[:, 1:]).all(), "tokens are distinct and rise"


@settings(max_examples=100, deadline=None)
@given(problem=problems(), chunk=st.integers(1, 30))
def test_classes_pool_the_counts_of_their_windows(problem, chunk):
    pytest.importorskip("scan_snap_ode.problem.classes")
    stream, arguments = problem
    vocabulary, expected = reference(stream, **arguments)
    if not expected:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(windows_module, "_CHUNK", chunk)
        found = windows(stream, **arguments)
        if found.vocab_size < 2:
            return
        classes, each = found.classes(), found.as_classes()
        summary = found.summary()
    pairs = Counter((w.query, w.next) for w in expected)
    rank = vocabulary.index
    ranked = sorted(pairs, key=lambda pair: (-pairs[pair], *map(rank, pair)))
    pairs_of = classes.query, classes.next_token
    names = [(vocabulary[m], vocabulary[n]) for m, n in zip(*pairs_of, strict=True)]
    assert names == ranked
    assert classes.weights == pytest.approx([pairs[pair] / len(expected) for pair in ranked], 1e-6)
    pooled = {pair: Counter[str]() for pair in ranked}
    for window in expected:
        pooled[window.query, window.next] += window.counts
    total = [[pooled[pair][word] for word in vocabulary] for pair in ranked]
    probs = np.array(total) / np.sum(total, axis=1, keepdims=True)
    np.testing.assert_allclose(classes.probs, probs, rtol=1e-6)
    assert [ranked[i] for i in found.class_index] == [(w.query, w.next) for w in expected]
    check_summary(summary, ranked, pairs, pooled)

    single = [[w.counts[word] for word in vocabulary] for w in expected]
    width = arguments["context_length"] - 1
    np.testing.assert_allclose(each.probs, np.array(single) / width, rtol=1e-6)
    np.testing.assert_allclose(each.weights, np.full(len(expected), 1 / len(expected)), rtol=1e-6)
    assert each.query.tolist() == found.query.tolist()
    assert each.next_token.tolist() == found.next_token.tolist()
    assert each.pooled is classes is found.classes()
    assert each is found.as_classes()
    assert classes.words == each.words == tuple(vocabulary)


def check_summary(summary, ranked, pairs, pooled) -> None:
    holders = Counter(word for counts in pooled.values() for word in counts)
    assert [(line["query"], line["next"]) for line in summary] == ranked
    for line, pair in zip(summary, ranked, strict=True):
        counts = pooled[pair]
        assert line["windows"] == pairs[pair]
        assert line["weight"] == pytest.approx(pairs[pair] / pairs.total())
        assert line["support"] == len(counts)
        assert sorted(line["distinct"] + line["common"]) == sorted(counts)
        assert all(holders[word] == 1 for word in line["distinct"])
        for listed in (line["top"], line["distinct"], line["common"]):
            shown = [counts[word] for word in listed]
            assert shown == sorted(shown, reverse=True)


# ------------------------------------------------------------------------------- each rule


def test_a_window_by_hand():
    assert read(windows(stream_of("xabacabad"), 4, "a", "c")) == [
        Window("a", "c", Counter(x=1, a=1, b=1))
    ]
    with pytest.raises(ValueError, match="no windows"):
        windows(stream_of("abacabad"), 4, "a", "c")  # two tokens stand before it, not three
    with pytest.raises(ValueError, match="no windows"):
        windows(stream_of("abacabad"), 4, "d")  # no token stands after it


def test_what_is_cut_becomes_unk():
    def vocabulary(text: str, size: int) -> tuple[str, ...]:
        return windows(stream_of(text), 2, query=None, vocab_size=size).vocabulary

    assert vocabulary("aaaabbbccd", 3) == ("a", "b", UNK)  # it takes the last place
    assert vocabulary("aaaabb???ccd", 3) == ("a", UNK, "b")  # or keeps its own
    assert vocabulary("aaaabbbcc?", 3) == ("a", "b", UNK)  # or rises to the last
    assert vocabulary("aaaabbbccde", 4) == ("a", "b", "c", UNK)
    assert vocabulary("aaaabbbccd", 9) == ("a", "b", "c", "d")  # nothing is cut


def test_ids_follow_frequency_also_where_the_stream_does_not():
    stream = TokenStream(np.array([2, 2, 2, 0, 0, 2, 0], np.int32), ("0", "1", "2"))
    found = windows(stream, 3, query=1)
    assert found.vocabulary == ("2", "0", "1")
    assert set(found.query) == {0}


def test_unk_is_no_choice_but_eos_is():
    stream = TokenStream(np.array([0, 1, 2] * 5, np.int32), (UNK, "<eos>", "a"))
    found = windows(stream, 3, query=None)
    assert set(found.query) == {1}  # "a" is always followed by <unk>
    assert found.vocabulary[found.query[0]] == "<eos>"
    with pytest.raises(ValueError, match="query must not be <unk>"):
        windows(stream, 3, query=UNK)
    with pytest.raises(ValueError, match="next_token must not be <unk>"):
        windows(stream, 3, query="a", next_token=["a", UNK])


def test_words_only_leaves_named_marks_alone():
    stream = stream_of("a.b.a.b.c" * 3)
    assert {w.query for w in read(windows(stream, 2, 2, words_only=True, next_token="."))} == {
        "a",
        "b",
    }
    assert {w.query for w in read(windows(stream, 2, ".", words_only=True))} == {"."}


def test_max_windows_draws_uniformly_and_keeps_the_order():
    stream = stream_of("ab" * 30)
    every = windows(stream, 3, query="a")
    times = Counter[int]()
    for seed in range(300):
        rows = windows_module._drawn(np.arange(len(every)), 7, seed)
        assert rows.size == 7
        assert (np.diff(rows) > 0).all()
        times.update(rows.tolist())
    mean = 300 * 7 / len(every)
    assert len(times) == len(every)
    assert all(abs(n - mean) < 5 * np.sqrt(mean) for n in times.values())
    assert len(windows(stream, 3, query="a", max_windows=7)) == 7
    assert len(windows(stream, 3, query="a", max_windows=10**9)) == len(every)


def test_the_draw_is_a_part_of_all_windows_and_depends_on_the_seed():
    stream = TokenStream(
        np.random.default_rng(0).integers(0, 9, 3000, np.int32), tuple("abcdefghi")
    )
    every = [row.tobytes() for row in windows(stream, 30).tokens]
    drawn = {
        seed: windows(stream, 30, max_windows=50, seed=seed).tokens.tobytes() for seed in (0, 1)
    }
    assert drawn[0] == windows(stream, 30, max_windows=50).tokens.tobytes()
    assert drawn[0] != drawn[1]
    rows = [row.tobytes() for row in windows(stream, 30, max_windows=50).tokens]
    left = iter(every)
    assert all(row in left for row in rows), "a subsequence"


def test_counts_that_need_more_than_sixteen_bits():
    stream = TokenStream(np.array([0] * 70_000 + [1, 0], np.int32), ("a", "b"))
    found = windows(stream, 70_001, query="b")
    assert found.counts.dtype == np.uint32
    assert found.counts.tolist() == [[70_000]]
    assert windows(stream, 65_535, query="b").counts.dtype == np.uint16


def test_windows_print_what_they_are():
    assert repr(windows(stream_of("abacabad" * 9), 4, query=2)).splitlines() == [
        "Windows of letters",
        "  windows     51 of T = 4",
        "  classes     4",
        "  queries     a  b",
        "  vocabulary  4",
        "  memory      0.0 MB",
    ]


# --------------------------------------------------------------------------- real and large


def wikitext(split: str) -> TokenStream:
    if not os.environ.get("SCAN_SNAP_DATA"):
        pytest.skip("SCAN_SNAP_DATA is not set: no WikiText-2 to read")
    return load_corpus("wikitext-2", split)


def test_wikitext_windows_are_as_many_as_counted_elsewhere():
    """Two settings counted by other code, which read no line of this one."""
    valid = windows(wikitext("valid"), 65, ["the", "of", "in", "to"], None, 24, vocab_size=300)
    assert (len(valid), len(valid.summary())) == (5935, 24)
    test = windows(wikitext("test"), 49, ["and", "was", "on", "with"], 24, vocab_size=400)
    assert len(test) == 3382


def test_memory_stays_small_beside_stream_and_result():
    ids = np.random.default_rng(0).zipf(1.3, 2_000_000) % 30_000
    stream = TokenStream(ids.astype(np.int32), tuple(map(str, range(30_000))))
    tracemalloc.start()
    try:
        found = windows(stream, 128, query=4, max_windows=20_000)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        assert found.summary()
        pooling = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    result = found.tokens.nbytes + found.counts.nbytes
    assert len(found) == 20_000
    assert result < 20_000 * 127 * 6
    # 37 and 51 MB; all windows sorted at once take 61 and 76.
    assert peak < 50e6
    assert pooling < 65e6


# ------------------------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"context_length": 1}, "context_length must be an integer of at least 2, was 1"),
        ({"context_length": 8.0}, r"context_length must be .*, was 8\.0"),
        ({"context_length": True}, "context_length must be .*, was True"),
        ({"context_length": 8}, r"context_length \+ 1 = 9 tokens or more, letters holds 8"),
        ({"query": 0}, "query must be an integer of at least 1, was 0"),
        ({"query": True}, "query must be .*, was True"),
        ({"query": 1.5}, r"query must be an integer of at least 1, a word, .*, was 1\.5"),
        ({"query": []}, r"query must be .*, was \[\]"),
        ({"query": ["a", 1]}, r"query must be .*, was \['a', 1\]"),
        ({"query": "zz"}, "query 'zz' is not a word of letters; some are 'a', 'b', 'c'"),
        ({"next_token": "zz"}, "next_token 'zz' is not a word of letters"),
        ({"next_token": -1}, "next_token must be an integer of at least 1, was -1"),
        ({"query": "d", "vocab_size": 2}, "query 'd' is not among the 2 words that vocab_size"),
        ({"vocab_size": 1}, "vocab_size must be an integer of at least 2, was 1"),
        ({"num_classes": 0}, "num_classes must be an integer of at least 1, was 0"),
        ({"max_windows": 0}, "max_windows must be an integer of at least 1, was 0"),
        ({"max_windows": "all"}, "max_windows must be .*, was 'all'"),
        (
            {"query": ["a", "b"], "next_token": "c", "context_length": 4},
            r"no windows of 4 tokens match: letters has 8 tokens, .* 'a' \(2 positions\), "
            r"'b' \(1 positions\), and none of next_token",
        ),
        ({"query": "d"}, "the queries found are none"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        windows(stream_of("abacabad"), **{"context_length": 3, **arguments})


def test_a_misspelt_word_is_met_with_its_neighbours():
    stream = TokenStream(np.array([0, 1, 2, 0, 1, 2], np.int32), ("lobster", "the", "cat"))
    with pytest.raises(ValueError, match="'Lobster' is not a word of tokens; some are 'lobster'"):
        windows(stream, 2, query="Lobster")


def test_no_letters_is_said():
    stream = TokenStream(np.array([0, 1] * 4, np.int32), ("0", "1"))
    with pytest.raises(ValueError, match=r"found are none.*words_only leaves out all but letters"):
        windows(stream, 2, words_only=True)


def test_what_is_no_stream_is_refused():
    with pytest.raises(ValueError, match=r"stream must be a TokenStream .*, was <class 'str'>"):
        windows(cast(Any, "wikitext-2"), 8)


def test_summary_shows_at_least_one_word():
    with pytest.raises(ValueError, match="top must be an integer of at least 1, was 0"):
        windows(stream_of("abacabad"), 3).summary(0)


def test_tables_too_large_are_refused(monkeypatch):
    found = windows(stream_of("abcd" * 9), 4)
    monkeypatch.setattr(windows_module, "_LARGEST_TABLE", 7)
    with pytest.raises(ValueError, match=r"classes of up to 3 tokens .* lower num_classes"):
        found.classes()
    with pytest.raises(ValueError, match=r"classes of up to 3 tokens .* lower num_classes"):
        found.as_classes()
