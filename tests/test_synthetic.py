"""The paper's synthetic problems: the authors' token layout and probabilities."""

import numpy as np
import pytest

import scan_snap_ode as sso

pytestmark = pytest.mark.quick


def test_syn_small_is_the_authors():
    classes = sso.syn_small()
    scores = np.concatenate([np.ones(10), np.linspace(0.1, 1, 10)])
    expected = np.zeros((2, 34))
    for i in range(2):
        expected[i, np.r_[:10, 10 + 10 * i : 20 + 10 * i]] = scores / 15.5
    np.testing.assert_allclose(classes.probs, expected, rtol=1e-15)
    assert list(classes.query) == [30, 31]
    assert list(classes.next_token) == [32, 33]
    assert list(classes.common_tokens) == list(range(10))
    assert list(classes.distinct_tokens(1)) == list(range(20, 30))
    np.testing.assert_allclose(classes.weights, 0.5)
    # The overlap that violates the paper's assumption: |λ1(E)| = 200/277.
    np.testing.assert_allclose(classes.overlap, [[0, 200 / 277], [200 / 277, 0]], atol=1e-15)


@pytest.mark.parametrize("num_query", [1, 3, 5, 10])
def test_syn_medium_counts(num_query):
    classes = sso.syn_medium(num_query)
    K = 2 * num_query
    assert classes.num_classes == K
    assert classes.vocab_size == 10 + 10 * K + num_query + K
    assert list(classes.query) == [10 + 10 * K + i // 2 for i in range(K)]
    assert list(classes.next_token) == [10 + 10 * K + num_query + i for i in range(K)]
    assert all(len(classes.distinct_tokens(i)) == 10 for i in range(K))


def test_single_common_token():
    classes = sso.single_common_token(3, 40, 0.1, 5)
    probs = np.asarray(classes.probs)
    np.testing.assert_allclose(probs.sum(1), 1)
    np.testing.assert_allclose(probs[:, 0], 0.1)
    for i in range(3):
        own = probs[i, 1 + 5 * i : 6 + 5 * i]
        np.testing.assert_allclose(own, np.linspace(0.5, 1.5, 5) * 0.9 / 5)
    assert list(classes.query) == [16, 16, 16]
    assert list(classes.next_token) == [17, 18, 19]
    assert list(classes.common_tokens) == [0]


def test_fifty_thousand_windows_stay_small():
    """128 tokens over 33,278: the padded form, and no array of N x M."""
    import tracemalloc

    rng = np.random.default_rng(0)
    ids = np.sort(rng.integers(0, 33_278, (50_000, 127)), axis=1)
    ids[:, 1:][ids[:, 1:] == ids[:, :-1]] = -1
    probs = np.where(ids < 0, 0, 1.0)
    probs /= probs.sum(1, keepdims=True)
    tracemalloc.start()
    classes = sso.SequenceClasses.from_sparse(
        ids, probs, rng.integers(0, 4, 50_000), rng.integers(0, 30, 50_000), vocab_size=33_278
    )
    assert len(classes.support_tokens) == 33_278
    assert tracemalloc.get_traced_memory()[1] < 1e9
    tracemalloc.stop()
    with pytest.raises(ValueError, match=r"dense 50,000 x 33,278 array"):
        _ = classes.probs
