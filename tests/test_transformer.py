"""The Transformer: against NumPy written from its definition, and stripped, against (Y, Z)."""

import dataclasses
import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scan_snap_ode as sso
from scan_snap_ode.training import language_model as lm
from scan_snap_ode.training.transformer import Architecture, Transformer, _sinusoids

KEY = jax.random.key(3)
SMALL = Architecture(11, width=8, num_layers=2, num_heads=2, ffn_width=6, dropout=0.0)
# The paper's one-layer model: nothing but attention and a decoder, the query masked.
STRIPPED = Architecture(
    7,
    width=7,
    ffn_width=0,
    dropout=0.0,
    positions=False,
    residual=False,
    layer_norm=False,
    sees_itself=False,
    biases=False,
)


def double(model):
    return jax.tree.map(lambda x: x.astype(jnp.float64), model)


def model_of(architecture, key=KEY):
    return double(Transformer(architecture, key))


def tokens_of(*shape, size=11, seed=0):
    return np.random.default_rng(seed).integers(0, size, shape).astype(np.int32)


def stripped(Y, Z):
    """The Transformer whose key map is Zᵀ, whose decoder is Y, and all else identities."""
    M = len(Y)
    model, eye = model_of(STRIPPED), jnp.eye(M)
    model = eqx.tree_at(
        lambda m: (
            m.embedding,
            m.decoder.weight,
            *(getattr(m.layers[0], name).weight for name in ("query", "key", "value", "output")),
        ),
        model,
        (eye / np.sqrt(M), jnp.asarray(Y), np.sqrt(M) * eye, jnp.asarray(Z).T, eye, eye),
    )
    return jax.tree.map(jnp.copy, model)


def softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_in_numpy(layer, x, heads):
    """Post-norm attention and ReLU, one sequence (T, d), position by position, head by head."""

    def affine(part, x):
        return x @ np.asarray(part.weight) + (0 if part.bias is None else np.asarray(part.bias))

    def norm(part, x):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)
        return scaled * np.asarray(part.weight) + np.asarray(part.bias)

    q, k, v = (affine(p, x) for p in (layer.query, layer.key, layer.value))
    size = x.shape[1] // heads
    mixed = np.zeros_like(x)
    for h in range(heads):
        own = slice(h * size, (h + 1) * size)
        for t in range(len(x)):
            c = softmax(k[: t + 1, own] @ q[t, own] / np.sqrt(size))
            mixed[t, own] = c @ v[: t + 1, own]
    x = norm(layer.norms[0], x + affine(layer.output, mixed))
    hidden = affine(layer.hidden[1], np.maximum(affine(layer.hidden[0], x), 0))
    return norm(layer.norms[1], x + hidden)


def test_it_is_what_its_definition_says():
    model, tokens = model_of(SMALL), tokens_of(3, 5)
    # Norms and biases that do something.
    model = jax.tree.map(lambda x: x + 0.1 * jnp.cos(jnp.arange(x.size)).reshape(x.shape), model)
    result = model(tokens)
    for b in range(3):
        x = np.asarray(model.embedding)[tokens[b]] * np.sqrt(8) + _sinusoids(5, 8)
        for layer in model.layers:
            x = layer_in_numpy(layer, x, 2)
        np.testing.assert_allclose(result[b], x, rtol=1e-12, atol=1e-12)
        scores = x @ np.asarray(model.decoder.weight) + np.asarray(model.decoder.bias)
        targets = tokens_of(1, 2, seed=b)
        expected = -np.log(softmax(scores[-2:])[np.arange(2), targets[0]]).mean()
        loss = model.loss(tokens[b : b + 1], targets)
        np.testing.assert_allclose(loss, expected, rtol=1e-12)


def test_positions_are_sines_and_cosines_of_falling_frequency():
    table = _sinusoids(50, 7)
    assert table.shape == (50, 7)
    t = np.arange(50)
    np.testing.assert_allclose(table[:, 0], np.sin(t), atol=1e-15)
    np.testing.assert_allclose(table[:, 1], np.cos(t), atol=1e-15)
    np.testing.assert_allclose(table[:, 4], np.sin(t / 10_000 ** (4 / 7)), atol=1e-14)


@pytest.mark.parametrize("sees_itself", [True, False])
def test_attention_is_causal_and_sums_to_one(sees_itself):
    model = model_of(dataclasses.replace(SMALL, sees_itself=sees_itself))
    tokens = tokens_of(2, 6)
    c = np.asarray(model.attention(tokens))
    assert c.shape == (2, 2, 6, 6)
    seen = np.tri(6, k=0 if sees_itself else -1)
    assert np.all(c[..., seen == 0] == 0)
    assert np.all(c[..., seen == 1] > 0)
    np.testing.assert_allclose(c.sum(-1)[..., 1:], 1, rtol=1e-14)
    assert np.all(c.sum(-1)[..., 0] == pytest.approx(float(sees_itself)))
    other = tokens.copy()
    other[:, 4:] = (tokens[:, 4:] + 1) % 11
    before, after = np.asarray(model(tokens)), np.asarray(model(other))
    np.testing.assert_array_equal(before[:, :4], after[:, :4])
    assert np.all(np.any(before[:, 4:] != after[:, 4:], axis=-1))


@pytest.mark.parametrize(
    ("length", "rates", "seed"),
    [
        (3, sso.LearningRates(0.7, 0.3), 0),
        (6, sso.LearningRates(0.7, 0.3), 1),
        (6, sso.LearningRates(0.1, 2.0), 2),
    ],
)
def test_stripped_it_is_the_pairwise_model(length, rates, seed):
    """Its steps equal those of the (Y, Z) trainer, where key map and decoder alone are trained, on
    the last position alone, without clipping."""
    rng = np.random.default_rng(seed)
    M, steps, batch = 7, 6, 4
    Y0, Z0 = rng.normal(size=(2, M, M))
    tokens = rng.integers(0, M, (steps, batch, length)).astype(np.int32)
    following = rng.integers(0, M, (steps, batch)).astype(np.int32)
    run = sso.train(
        sso.FixedBatches(tokens, following, M),
        rates,
        steps,
        init=(Y0, Z0),
        record_at=np.arange(steps + 1),
    )
    model = stripped(Y0, Z0)
    assert run.batch_loss is not None
    each = eqx.tree_at(
        lambda r: r.layers[0].query.weight, lm.parameter_rates(model, rates, 0.0), jnp.asarray(0.0)
    )
    queries, columns = run.query_tokens[:, None], np.array(run.decoder_tokens)
    columns[columns < 0] = np.setdiff1d(np.arange(M), columns)  # the one that is never next
    for k in range(steps):
        given = tokens[k], following[k][:, None], None, each, jnp.asarray(np.inf)
        model, loss = lm.sgd_step(given, model)
        np.testing.assert_allclose(loss, run.batch_loss[k + 1], rtol=1e-12)
        Y, Z = np.asarray(model.decoder.weight), np.asarray(model.layers[0].key.weight).T
        np.testing.assert_allclose(
            Y[np.ix_(run.support_tokens, columns)],
            run.decoder[k + 1],
            rtol=1e-11,
            atol=1e-13,
        )
        np.testing.assert_allclose(
            Z[queries, run.support_tokens], run.attention_logits[k + 1], rtol=1e-11, atol=1e-13
        )
    assert np.max(np.abs(np.asarray(run.attention_logits[-1] - run.attention_logits[0]))) > 0.01


def test_initial_values_are_those_stated():
    model = Transformer(Architecture(5000, width=64, ffn_width=32), KEY)
    layer = model.layers[0]
    assert layer.hidden is not None
    bounds = {
        0.1: [model.embedding, model.decoder.weight],
        np.sqrt(6 / 256): [layer.query.weight, layer.key.weight, layer.value.weight],
        1 / 8: [layer.output.weight, layer.hidden[0].weight, layer.hidden[0].bias],
        1 / np.sqrt(32): [layer.hidden[1].weight, layer.hidden[1].bias],
    }
    for bound, arrays in bounds.items():
        for array in map(np.asarray, arrays):
            assert array.dtype == np.float32
            assert 0.85 * bound < np.abs(array).max() <= bound
            if array.size > 1000:
                assert abs(array.std() / (bound / np.sqrt(3)) - 1) < 0.05
    for part in (layer.query, layer.key, layer.value, layer.output, model.decoder):
        assert not np.any(part.bias)
    for norm in layer.norms:
        assert np.all(norm.weight == 1)
        assert not np.any(norm.bias)


def test_dropout_is_for_training_only():
    model = model_of(dataclasses.replace(SMALL, dropout=0.5))
    tokens = tokens_of(2, 5)
    still = np.asarray(model(tokens))
    np.testing.assert_array_equal(still, model(tokens))
    one, other = (np.asarray(model(tokens, jax.random.key(k))) for k in range(2))
    assert np.any(one != still)
    assert np.any(one != other)
    np.testing.assert_array_equal(one, model(tokens, jax.random.key(0)))


def test_a_step_is_the_clipped_gradient_times_the_rates():
    tokens, targets = tokens_of(2, 5), tokens_of(2, 5, seed=1)
    rates = sso.LearningRates(3.0, 0.5)
    for clip in (0.01, 1e6):
        model = model_of(SMALL)
        gradient = eqx.filter_grad(lambda m: m.loss(tokens, targets))(model)
        norm = np.sqrt(sum(float(jnp.sum(g**2)) for g in jax.tree.leaves(gradient)))
        scale = min(1, clip / norm)
        each = lm.parameter_rates(model, rates, 2.0)
        before = jax.tree.map(np.asarray, model)
        given = tokens, targets, None, each, jnp.asarray(clip)
        after, _ = lm.sgd_step(given, model_of(SMALL))

        def moved(pick, before=before, after=after):
            return np.asarray(pick(after)) - pick(before)

        for rate, pick in (
            (3.0, lambda m: m.decoder.weight),
            (3.0, lambda m: m.decoder.bias),
            (0.5, lambda m: m.layers[0].query.weight),
            (0.5, lambda m: m.layers[1].key.bias),
            (2.0, lambda m: m.layers[1].value.weight),
            (2.0, lambda m: m.embedding),
            (2.0, lambda m: m.layers[0].norms[1].bias),
        ):
            np.testing.assert_allclose(
                moved(pick), -rate * scale * np.asarray(pick(gradient)), rtol=1e-9, atol=1e-15
            )


def test_the_model_given_stays_as_it_was():
    model = Transformer(SMALL, KEY)
    before = jax.tree.map(np.asarray, model)
    run = lm.train_language_model(model, COLUMNS, RATES, 2, context_length=6)
    assert not np.array_equal(run.model.embedding, before.embedding)
    for x, y in zip(jax.tree.leaves(model), jax.tree.leaves(before), strict=True):
        np.testing.assert_array_equal(x, y)


def test_batches_read_the_columns_downwards():
    ids = np.arange(100, dtype=np.int32)
    columns = lm.stream_columns(ids, 4)
    np.testing.assert_array_equal(columns[:, 0], np.arange(25))
    np.testing.assert_array_equal(columns[0], [0, 25, 50, 75])
    for step in range(10):
        tokens, targets = lm.batch_of(columns, step, 5)
        np.testing.assert_array_equal(targets, tokens + 1)
        np.testing.assert_array_equal(tokens[0], 5 * (step % 4) + np.arange(5))
        assert tokens.shape == (4, 5)


COLUMNS = lm.stream_columns(tokens_of(400), 4)
RATES = sso.LearningRates(1.0, 1.0)


def trained(steps=12, **given):
    given = {
        "context_length": 6,
        "record_at": range(0, steps + 1, 3),
        "measure": lambda model: {"bias": np.asarray(model.decoder.bias)},
        "seed": 5,
    } | given
    model = Transformer(dataclasses.replace(SMALL, dropout=0.3), KEY)
    return lm.train_language_model(model, COLUMNS, RATES, steps, **given)


def same(a, b):
    np.testing.assert_array_equal(a.loss, b.loss)
    np.testing.assert_array_equal(a.recorded_at, b.recorded_at)
    np.testing.assert_array_equal(a.measures["bias"], b.measures["bias"])
    for x, y in zip(jax.tree.leaves(a.model), jax.tree.leaves(b.model), strict=True):
        np.testing.assert_array_equal(x, y)


class Killed(BaseException):
    """What nothing in the package catches."""


@pytest.mark.parametrize("how", [KeyboardInterrupt, Killed])
def test_a_stopped_run_ends_in_the_same_numbers(how, tmp_path, monkeypatch):
    """Stopped by ctrl-C it is saved; killed, it goes on from the last checkpoint."""
    monkeypatch.setattr(lm, "_CHECKPOINT_EVERY", 0 if how is Killed else 1e9)
    whole = trained()
    path = tmp_path / "run.npz"
    calls = []

    def measure(model):
        calls.append(1)
        if len(calls) == 3:
            raise how
        return {"bias": np.asarray(model.decoder.bias)}

    with pytest.raises(how):
        trained(measure=measure, checkpoint=path)
    with np.load(path) as held:
        assert json.loads(str(held["about"]))["step"] == 6
    same(trained(checkpoint=path), whole)
    same(trained(checkpoint=path), whole)  # complete: nothing is left to do
    assert len(trained(steps=15, checkpoint=path).loss) == 15


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 6}, r"has seed 5 where 6 is asked"),
        ({"clip": 0.1}, r"has clip 0\.5 where 0\.1"),
        ({"context_length": 5}, r"has context_length 6 where 5"),
        ({"other": 0.25}, r"has other rate 1\.0 where 0\.25"),
        ({"setting": {"text": "b"}}, r"has text 'a' where 'b'"),
        ({"setting": {}}, r"has text 'a' where None"),
        ({"steps": 3}, r"steps must be at least the 12"),
        ({"record_at": [4]}, r"record_at must be that of .*, which was not at 4"),
    ],
)
def test_a_checkpoint_of_another_setting_is_refused(change, message, tmp_path):
    path = tmp_path / "run.npz"
    trained(checkpoint=path, setting={"text": "a"})
    held = path.read_bytes()
    with pytest.raises(ValueError, match=message):
        trained(checkpoint=path, **{"setting": {"text": "a"}, **change})
    assert path.read_bytes() == held


@pytest.mark.parametrize("kept", [0, 100, 3000])
def test_a_broken_checkpoint_is_named(kept, tmp_path):
    path = tmp_path / "run.npz"
    trained(checkpoint=path)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(ValueError, match=r"checkpoint must be one of a Transformer, .*run.npz"):
        trained(checkpoint=path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"vocab_size": 1}, "vocab_size must be an integer of at least 2, was 1"),
        ({"num_heads": 3}, "num_heads must divide the width, 8, was 3"),
        ({"num_layers": 0}, "num_layers must be an integer of at least 1, was 0"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\)"),
        ({"ffn_width": -1}, "ffn_width must be an integer of at least 0, was -1"),
    ],
)
def test_bad_architectures_are_refused(given, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(SMALL, **given)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: trained(steps=0), "steps must be an integer of at least 1, was 0"),
        (lambda: trained(context_length=100), "columns must hold more rows than a window, 100"),
        (lambda: trained(seed=-1), "seed must be an integer of at least 0"),
        (lambda: trained(clip=0.0), "clip must be above 0, was 0.0"),
        (lambda: trained(clip=np.nan), "clip must be above 0, was nan"),
        (lambda: trained(other=-1.0), "other must be at least 0 and finite, was -1.0"),
        (lambda: lm.stream_columns([1, 2, 3], 2), "ids must hold two tokens a column, 4, held 3"),
        (lambda: lm.stream_columns([1, 2, 3], 0), "batch_size must be an integer of at least 1"),
    ],
)
def test_bad_input_to_training_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
