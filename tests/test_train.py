"""The trainer: what it samples, what it differentiates, what it repeats exactly."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import scan_snap_ode as sso
from scan_snap_ode.problem import initial
from scan_snap_ode.training import batches
from scan_snap_ode.training.batches import FreshWindows, ObservedWindows
from scan_snap_ode.training.pairwise import batch_loss, loss_and_gradient

RATES = sso.LearningRates(0.5, 0.3)


def key(seed=0):
    return jax.random.key(seed, impl="threefry2x32")


@pytest.fixture(scope="module")
def text_windows():
    rng = np.random.default_rng(3)
    ids = (rng.zipf(1.4, 4000) - 1).clip(0, 19).astype(np.int32)
    stream = sso.TokenStream(ids, tuple(f"w{k}" for k in range(20)), "zipf", "")
    return sso.windows(stream, 12, query=3, num_classes=9, vocab_size=20)


@pytest.mark.quick
@pytest.mark.parametrize("compare_all", [True, False])
def test_fresh_windows_follow_their_classes(monkeypatch, compare_all):
    """Token counts, pooled over windows, against P by χ²; padding inside a row, a rare token and
    unequal weights included."""
    if not compare_all:
        monkeypatch.setattr(batches, "_COMPARE_ALL", 0)
    ids = np.array([[4, -1, 0, 2, -1], [1, 2, 3, 0, 5]])
    probs = np.array([[0.2, 0, 0.5, 0.3, 0], [0.001, 0.249, 0.25, 0.25, 0.25]])
    classes = sso.SequenceClasses.from_sparse(
        ids, probs, [6, 7], [8, 9], [0.25, 0.75], vocab_size=10
    )
    batch = FreshWindows(classes, 6000, 34).draw(key(), jnp.asarray(0))
    counts, of_class = np.asarray(batch.counts), np.asarray(batch.of_class)
    assert (counts.sum(1) == 34).all()
    assert (counts >= 0).all()
    assert stats.binomtest(int((of_class == 1).sum()), 6000, 0.75).pvalue > 1e-3
    for i in range(2):
        mine = counts[of_class == i].sum(0)
        assert not mine[ids[i] < 0].any()
        held = ids[i] >= 0
        expected = probs[i, held] * mine.sum()
        assert stats.chisquare(mine[held], expected).pvalue > 1e-3
        # Multinomial, not merely unbiased: the variance of one token's count.
        p = probs[i, 2]
        variance = counts[of_class == i][:, 2].var() / (34 * p * (1 - p))
        assert abs(variance - 1) < 6 * np.sqrt(2 / (of_class == i).sum())


def test_odd_and_even_windows_and_both_samplers_agree(monkeypatch):
    classes = sso.syn_small()
    for num_context in (1, 2, 7, 8):
        sampler = FreshWindows(classes, 50, num_context)
        near = sampler.draw(key(4), jnp.asarray(0))
        monkeypatch.setattr(batches, "_COMPARE_ALL", 0)
        far = sampler.draw(key(4), jnp.asarray(0))
        monkeypatch.undo()
        np.testing.assert_array_equal(near.counts, far.counts)
        assert (near.counts.sum(1) == num_context).all()


def test_a_certain_token_takes_every_draw():
    classes = sso.SequenceClasses([[0, 1.0, 0]], [0], [2])
    batch = FreshWindows(classes, 10, 5).draw(key(), jnp.asarray(0))
    np.testing.assert_array_equal(batch.counts, np.full((10, 1), 5))


def test_windows_are_drawn_uniformly(text_windows):
    sampler = ObservedWindows(text_windows.as_classes(), 40 * len(text_windows))
    rows = np.asarray(sampler.draw(key(), jnp.asarray(0)).of_class)
    drawn = np.bincount(rows, minlength=len(text_windows))
    assert stats.chisquare(drawn).pvalue > 1e-3


def test_batch_gradient_averages_to_that_of_all_windows(text_windows):
    """Every window once, as one batch, is the full-batch loss: autodiff against the formulas."""
    classes = text_windows.as_classes()
    rng = np.random.default_rng(0)
    Y, Z = initial.zeros(classes.layout, float)
    state = jnp.asarray(rng.normal(size=Y.shape)), jnp.asarray(rng.normal(size=Z.shape))
    decoder = classes.layout.decoder
    batch = ObservedWindows(classes, len(text_windows), in_order=True).draw(key(), jnp.asarray(0))
    loss, gradient = loss_and_gradient(state, batch, decoder)
    J, ascent = sso.JointFlow(classes).objective.value_and_gradient(*state)
    np.testing.assert_allclose(loss, -J, rtol=1e-12)
    for a, b in zip(gradient, ascent, strict=True):
        np.testing.assert_allclose(a, -b, atol=1e-14)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10**6))
def test_batch_loss_is_free_of_the_scale_of_counts(seed):
    classes = sso.syn_small()
    batch = FreshWindows(classes, 3, 9).draw(key(seed), jnp.asarray(0))
    rng = np.random.default_rng(seed)
    Y, Z = (jnp.asarray(rng.normal(size=x.shape)) for x in initial.zeros(classes.layout, float))
    decoder = classes.layout.decoder
    scaled = batch._replace(counts=batch.counts * 7.5)
    np.testing.assert_allclose(
        batch_loss(Y, Z, batch, decoder), batch_loss(Y, Z, scaled, decoder), rtol=1e-12
    )


@pytest.mark.parametrize("init", ["zeros", "uniform"])
def test_a_seed_is_a_run_of_its_own(init):
    classes = sso.syn_small()
    options = {"batch_size": 8, "momentum": 0.5, "init": init, "record_at": [0, 3, 9]}
    many = sso.train(classes, RATES, 9, num_seeds=3, seed=5, **options)
    assert many.decoder.shape[0] == 3
    for s in range(3):
        one = sso.train(classes, RATES, 9, seed=5 + s, **options)
        np.testing.assert_allclose(many.decoder[s], one.decoder, rtol=0, atol=1e-14)
        np.testing.assert_allclose(many.attention_logits[s], one.attention_logits, atol=1e-14)
    assert np.abs(np.asarray(many.decoder[0] - many.decoder[1])).max() > 1e-4


def test_rates_share_batches_and_equal_single_runs(text_windows):
    decoder, attention = np.array([[0.1], [0.7]]), np.array([0.2, 0.4, 0.9])
    both = sso.LearningRates(decoder, attention)
    many = sso.train(text_windows, both, 6, batch_size=4, num_seeds=2, record_at=[6])
    assert many.attention_logits.shape[:3] == (2, 2, 3)
    for j in range(2):
        for k in range(3):
            rates = sso.LearningRates(decoder[j, 0], attention[k])
            one = sso.train(text_windows, rates, 6, batch_size=4, num_seeds=2, record_at=[6])
            np.testing.assert_allclose(many.at((0, j, k)).decoder, one.at(0).decoder, atol=1e-14)


def test_uniform_start_is_the_authors():
    classes = sso.syn_small()
    run = sso.train(classes, RATES, 1, init="uniform", num_seeds=40, record_at=[0])
    values = np.concatenate(
        [np.asarray(run.decoder).ravel(), np.asarray(run.attention_logits).ravel()]
    )
    bound = 1 / np.sqrt(34)
    assert run.decoder.shape[-1] == 34
    assert np.abs(values).max() <= bound
    assert stats.kstest(values, stats.uniform(-bound, 2 * bound).cdf).pvalue > 1e-3


def test_uniform_start_does_not_depend_on_the_support():
    small = sso.syn_small()
    fewer = sso.SequenceClasses(np.asarray(small.probs)[:1], small.query[:1], small.next_token[:1])
    a, b = (sso.train(c, RATES, 1, init="uniform", record_at=[0]) for c in (small, fewer))
    shared = np.searchsorted(a.support_tokens, b.support_tokens)
    np.testing.assert_array_equal(a.decoder[0][shared], b.decoder[0])
    np.testing.assert_array_equal(a.attention_logits[0][0][shared], b.attention_logits[0][0])


@pytest.mark.usefixtures("usual_promotion")
@pytest.mark.parametrize("optimizer", ["sgd", "adam", optax.scale_by_rms()])
def test_a_run_goes_on_exactly(tmp_path, optimizer):
    classes, options = sso.syn_small(), {"batch_size": 8, "num_seeds": 2, "optimizer": optimizer}
    options["momentum"] = 0.9 if optimizer == "sgd" else 0.0
    record_at = [0, 2, 5, 11]
    whole = sso.train(classes, RATES, 11, record_at=record_at, **options)
    begun = sso.train(classes, RATES, 4, record_at=[0, 2], checkpoint=tmp_path / "c.nc", **options)
    on = sso.train(
        classes, RATES, 11, record_at=record_at, init=sso.load(tmp_path / "c.nc"), **options
    )
    assert int(begun.stats["updates"][0]) == 4
    for a, b in zip(jax.tree.leaves(on), jax.tree.leaves(whole), strict=True):
        np.testing.assert_array_equal(a, b)
    with pytest.raises(ValueError, match="differs in seed"):
        sso.train(classes, RATES, 20, init=begun, seed=1, **options)
    with pytest.raises(ValueError, match="differs in rates"):
        sso.train(classes, sso.LearningRates(0.5, 0.4), 20, init=begun, **options)


@pytest.mark.usefixtures("usual_promotion")
@pytest.mark.parametrize(
    ("name", "transformation"), [("adam", optax.scale_by_adam()), ("sgd", optax.identity())]
)
def test_reduced_columns_train_like_all_columns(name, transformation):
    classes, options = sso.syn_small(), {"batch_size": 8, "record_at": [0, 40]}
    reduced = sso.train(classes, RATES, 40, optimizer=name, **options)
    full = sso.train(classes, RATES, 40, optimizer=transformation, **options)
    np.testing.assert_allclose(full.attention_logits, reduced.attention_logits, atol=1e-12)
    np.testing.assert_allclose(full.loss, reduced.loss, atol=1e-12)


def test_a_clip_by_global_norm_sees_every_column():
    """The norm of the whole gradient: one column counted once would clip too late."""
    classes = sso.syn_small()
    run = sso.train(
        classes, sso.LearningRates(1.0, 1.0), 1, batch_size=None, record_at=[1],
        optimizer=optax.clip_by_global_norm(0.01),
    )  # fmt: skip
    length = np.sqrt(np.sum(run.decoder[0] ** 2) + np.sum(run.attention_logits[0] ** 2))
    np.testing.assert_allclose(length, 0.01, rtol=1e-12)


def test_sums_stay_zero_in_training():
    run = sso.train(sso.syn_small(), RATES, 200, batch_size=16, momentum=0.9)
    multiplicity = run.classes.layout.decoder.multiplicity
    assert np.abs(np.asarray(run.decoder) @ multiplicity).max() < 1e-9
    assert np.abs(np.asarray(run.attention_logits).sum(-1)).max() < 1e-9


def test_a_run_that_diverges_says_so():
    explode = optax.scale(1e308)
    rates = sso.LearningRates(1e308, 1e308)
    run = sso.train(sso.syn_small(), rates, 5, batch_size=4, optimizer=explode)
    assert run.status == sso.Status.NOT_FINITE
    assert "1 of 1 runs failed" in repr(run)


def test_interruption_keeps_what_is_done(monkeypatch, tmp_path):
    from scan_snap_ode.training import loop

    calls, original = 0, loop.Stepper.advance

    def advance(self, carry, start, stop):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return original(self, carry, start, stop)

    monkeypatch.setattr(loop.Stepper, "advance", advance)
    options = {"batch_size": 4, "record_at": [0, 1, 3, 50]}
    with pytest.raises(sso.Interrupted) as stopped:
        sso.train(sso.syn_small(), RATES, 50, checkpoint=tmp_path / "c.nc", **options)
    monkeypatch.undo()
    partial = stopped.value.partial
    assert 0 < int(partial.stats["updates"]) < 50
    on = sso.train(sso.syn_small(), RATES, 50, init=sso.load(tmp_path / "c.nc"), **options)
    whole = sso.train(sso.syn_small(), RATES, 50, **options)
    np.testing.assert_array_equal(on.decoder, whole.decoder)


def test_single_precision_trains_close_to_double(single_precision):
    run = sso.train(sso.syn_small(), RATES, 50, batch_size=8, record_at=[50])
    assert run.decoder.dtype == jnp.float32
    jax.config.update("jax_enable_x64", True)
    double = sso.train(sso.syn_small(), RATES, 50, batch_size=8, record_at=[50])
    np.testing.assert_allclose(run.attention_logits, double.attention_logits, atol=2e-5)
