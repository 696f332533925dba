"""The flows against independent mathematics and the authors' own run."""

import json
from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scan_snap_ode as sso

DATA = Path(__file__).parent / "data"
CASES = json.loads((DATA / "joint_flow.json").read_text())["cases"]


def classes_of(case, dtype=np.float64):
    probs = np.zeros((len(case["P"]), case["M"]))
    probs[:, case["support"]] = case["P"]
    return sso.SequenceClasses(probs.astype(dtype), case["query"], case["next"], case["weight"])


def rates_of(case):
    return sso.LearningRates(case["eta_Y"], case["eta_Z"])


def largest_error(case, run):
    """Over z, c, entropy, loss and |Y| at every recorded time."""
    errors = []
    columns = np.searchsorted(case["support"], run.support_tokens)
    multiplicity = run.classes.layout.decoder_of_width(run.decoder.shape[-1]).multiplicity
    for k, row in enumerate(case["rows"]):
        frobenius = np.sqrt(np.sum(np.asarray(run.decoder[k]) ** 2 * multiplicity))
        errors += [
            np.abs(run.attention_logits[k] - np.array(row["z"])[:, columns]).max(),
            np.abs(run.attention[k] - np.array(row["c"])[:, columns]).max(),
            np.abs(run.entropy[k] - np.array(row["entropy"])).max(),
            np.abs(run.loss[k] - row["loss"]),
            np.abs(frobenius - row["Y_frobenius"]) / row["Y_frobenius"],
        ]
    return max(map(float, errors))


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_joint_flow_in_double_precision(case):
    ts = [row["t"] for row in case["rows"]]
    run = sso.integrate(sso.JointFlow(classes_of(case)), rates_of(case), ts, rtol=1e-9)
    assert run.attention_logits.dtype == jnp.float64
    assert largest_error(case, run) < 1e-6


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_joint_flow_in_single_precision(case, single_precision):
    ts = [row["t"] for row in case["rows"]]
    run = sso.integrate(sso.JointFlow(classes_of(case)), rates_of(case), ts, rtol=1e-9)
    assert run.attention_logits.dtype == jnp.float32
    assert largest_error(case, run) < 2e-4


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_joint_flow_under_jit_and_vmap_over_rates(case):
    flow = sso.JointFlow(classes_of(case))
    ts = jnp.array([float(row["t"]) for row in case["rows"]])

    @eqx.filter_jit
    def solve(rates, ts):
        return sso.integrate(flow, rates, ts, rtol=1e-9)

    rates = rates_of(case)
    assert largest_error(case, solve(rates, ts)) < 1e-6
    # The truth stands for every pair of one ratio, at times scaled by the rate.
    scale = jnp.array([1.0, 0.5, 4.0])
    scaled = sso.LearningRates(rates.decoder * scale, rates.attention * scale)
    many = eqx.filter_vmap(solve)(scaled, ts[None, :] / scale[:, None])
    for k in range(3):
        assert largest_error(case, jax.tree.map(lambda x, k=k: x[k], many)) < 1e-6
    together = sso.integrate(
        flow, sso.LearningRates(rates.decoder, [rates.attention] * 2), ts, rtol=1e-9
    )
    for k in range(2):
        assert largest_error(case, together.at(k)) < 1e-6


@pytest.mark.quick
@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_rows_keep_their_sums(case):
    ts = [row["t"] for row in case["rows"]]
    run = sso.integrate(sso.JointFlow(classes_of(case)), rates_of(case), ts)
    multiplicity = run.classes.layout.decoder.multiplicity
    assert np.abs(np.asarray(run.decoder) @ multiplicity).max() < 1e-9
    assert np.abs(np.asarray(run.attention_logits).sum(-1)).max() < 1e-9


@pytest.fixture(scope="module")
def recording():
    return np.load(DATA / "authors_run.npz")


def test_replay_of_the_authors_run(recording):
    batches = sso.FixedBatches(recording["x"], recording["label"], vocab_size=34)
    steps = [1, 2, 4, 6, 8, 10, 48, 100]
    run = sso.train(batches, sso.LearningRates(1.0, 1.0), 100, momentum=0.9, record_at=[0, *steps])
    columns = np.where(run.decoder_tokens < 0, 0, run.decoder_tokens)
    support, queries = run.support_tokens, run.query_tokens
    assert run.batch_loss is not None
    for k, t in enumerate(steps, start=1):
        Y = recording[f"K1_{t}"].T.astype(float)
        Z = recording[f"K2_{t}"].astype(float)
        assert np.abs(run.attention_logits[k] - Z[queries][:, support]).max() < 1e-5
        assert np.abs(run.decoder[k] - Y[support][:, columns]).max() < 2e-5
        np.testing.assert_allclose(
            run.batch_loss[k], recording["loss"][t - 1], rtol=1e-5, atol=1e-6
        )
    assert np.isnan(run.batch_loss[0])
    # What the reduced coordinates leave out has indeed never moved.
    still = np.setdiff1d(np.arange(34), queries)
    assert not recording["K2_100"][still].any()


def test_replay_with_all_columns_of_the_decoder(recording):
    """An optax transformation trains every column; the same run must come out."""
    import optax

    batches = sso.FixedBatches(recording["x"][:20], recording["label"][:20], vocab_size=34)
    rates = sso.LearningRates(1.0, 1.0)
    reduced = sso.train(batches, rates, 20, momentum=0.9)
    full = sso.train(batches, rates, 20, optimizer=optax.trace(0.9))
    assert reduced.decoder.shape[-1] == 3
    assert full.decoder.shape[-1] == 34
    np.testing.assert_allclose(full.attention_logits, reduced.attention_logits, atol=1e-13)
    np.testing.assert_allclose(
        full.decoder[..., reduced.decoder_tokens[:2]], reduced.decoder[..., :2], atol=1e-13
    )
    np.testing.assert_allclose(full.loss, reduced.loss, atol=1e-13)
