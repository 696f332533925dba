"""When attention snaps: measured, predicted, stopped at, differentiated."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import scan_snap_ode as sso

ONE = sso.LearningRates(1.0, 1.0)
SMALL = sso.syn_small()


def logistic_run(ts, height=1.0, centre=2.0):
    """A run whose attention is known: c of the first of two tokens goes from ½ to σ(height) along
    a logistic in log10 t."""
    z = height / (1 + np.exp(-8 * (np.log10(np.maximum(ts, 1e-9)) - centre)))
    classes = sso.SequenceClasses([[0.5, 0.5, 0, 0]], [2], [3])
    return sso.Trajectory(
        classes=classes, rates=ONE, ts=jnp.asarray(ts),
        attention_logits=jnp.stack([jnp.asarray(z), 0 * z], axis=1)[:, None],
        decoder=jnp.zeros((len(ts), 2, 2)), status=jnp.asarray(0), stats={}, about={"method": "x"},
    )  # fmt: skip


def test_times_of_a_known_curve():
    ts = np.geomspace(1, 1e4, 401)
    found = sso.snap_times(logistic_run(ts), fraction=0.02)
    fine = np.geomspace(1, 1e4, 400_001)
    c = 1 / (1 + np.exp(-(1 / (1 + np.exp(-8 * (np.log10(fine) - 2))))))
    speed = np.gradient(c, fine)
    assert abs(np.log(found.fastest / fine[np.argmax(speed)])) < 0.02
    per_decade = speed * fine * np.log(10)
    settled = fine[np.flatnonzero(per_decade > 0.02)[-1]]
    assert abs(np.log(found.settled / settled)) < 0.03


def test_a_run_that_still_moves_has_not_settled():
    ts = np.geomspace(1, 100, 50)
    assert np.isnan(sso.snap_times(logistic_run(ts)).settled)
    still = sso.snap_times(logistic_run(ts, height=0.0))
    assert still.settled == 1.0
    assert np.isnan(still.fastest)


def test_nothing_has_settled_before_it_moved():
    """Also where records begin at t = 0, an infinity of decades before the next."""
    found = sso.snap_times(logistic_run(np.array([0.0, 1e4, 1e5])))
    assert (found.fastest, found.settled) == (5e3, 1e4)


def test_each_run_of_a_batch_has_its_own_times():
    rates = sso.LearningRates(1.0, np.array([0.1, 1.0]))
    runs = sso.integrate(sso.JointFlow(SMALL), rates, np.geomspace(0.1, 1e5, 61))
    both = sso.snap_times(runs)
    for k in range(2):
        alone = sso.snap_times(runs.at(k))
        assert both.fastest[k] == alone.fastest
        np.testing.assert_array_equal(both.settled[k], alone.settled)


def test_event_stops_where_the_records_say_that_it_snaps():
    flow, ts = sso.JointFlow(SMALL), np.geomspace(0.1, 1e6, 701)
    measured = sso.snap_times(sso.integrate(flow, ONE, ts), 0.05).settled
    run = sso.integrate(flow, ONE, [1.0, 1e6], event=sso.Snap(0.05), rtol=1e-9)
    assert int(run.status) == sso.Status.EVENT
    assert not run.failed
    assert abs(np.log(run.stats["end_time"] / measured)) < 0.03
    assert np.isfinite(run.decoder[0]).all()
    assert np.isnan(run.attention_logits[1]).all()
    assert "1 of 1 runs stopped at their event" in repr(run)


def test_event_comes_for_each_pair_of_rates_and_in_slow_attention():
    flow = sso.SlowAttentionFlow(sso.single_common_token(5, 200, 0.1, 4))
    rates = sso.LearningRates(np.array([1.0, 2.0]), 0.1)
    run = sso.integrate(flow, rates, [1e9], event=sso.Snap(0.005))
    assert (np.asarray(run.status) == sso.Status.EVENT).all()
    assert run.stats["end_time"][0] > run.stats["end_time"][1]


def test_an_event_that_does_not_come_changes_nothing():
    flow = sso.JointFlow(SMALL)
    plain = sso.integrate(flow, ONE, [5.0, 10.0])
    run = sso.integrate(flow, ONE, [5.0, 10.0], event=sso.Snap(0.01))
    np.testing.assert_allclose(run.attention_logits, plain.attention_logits, rtol=1e-12)
    assert int(run.status) == sso.Status.SUCCESS
    assert run.stats["end_time"] == 10


def test_an_event_of_ones_own():
    """Where the loss has fallen to 3 nats."""

    def loss_above_three(classes, t, model, velocity):
        return -sso.JointFlow(classes).objective.value(*model) - 3.0

    run = sso.integrate(sso.JointFlow(SMALL), ONE, [1e4], event=loss_above_three, rtol=1e-9)
    end = float(run.stats["end_time"])
    loss = sso.integrate(sso.JointFlow(SMALL), ONE, [end], rtol=1e-9).loss[0]
    np.testing.assert_allclose(loss, 3.0, rtol=1e-6)


def test_snap_time_has_derivatives():
    """In the rates and in the probabilities, against central differences."""

    def log_snap_time(log_rate, logits):
        probs = jax.nn.softmax(logits, axis=1)
        classes = sso.SequenceClasses.from_sparse(
            SMALL.ids, probs, SMALL.query, SMALL.next_token, vocab_size=34
        )
        rates = sso.LearningRates(1.0, jnp.exp(log_rate))
        run = sso.integrate(
            sso.JointFlow(classes), rates, [1e6], event=sso.Snap(0.05), rtol=1e-9, atol=1e-11
        )
        return jnp.log(run.stats["end_time"])

    point = jnp.array(0.2), jnp.log(SMALL.support_probs)
    away = jnp.array(1.0), jnp.asarray(np.random.default_rng(0).normal(size=(2, 20)))
    gradients = jax.grad(log_snap_time, argnums=(0, 1))(*point)
    h = 1e-3
    for k in range(2):
        ahead, behind = (
            log_snap_time(*(p + s * h * away[k] if j == k else p for j, p in enumerate(point)))
            for s in (1, -1)
        )
        slope = jnp.sum(gradients[k] * away[k])
        np.testing.assert_allclose(slope, (ahead - behind) / (2 * h), rtol=1e-4)


def test_transition_times_predict_the_order_of_snapping():
    """Attention moves fastest near γ's peak, and t₀ lies between that and where it settles."""
    classes = sso.single_common_token(10, 1000, 0.1, 10)
    rates = sso.LearningRates(1.0, 0.01)
    run = sso.integrate(sso.SlowAttentionFlow(classes), rates, np.geomspace(1, 1e8, 161))
    found, predicted = sso.snap_times(run, 0.005), sso.transition_times(rates, 1000, 10)
    assert 0.5 < found.fastest / float(predicted.peak) < 1.5
    assert found.fastest < float(predicted.t0) < found.settled


@pytest.mark.parametrize("fraction", [0, 1, -1, np.nan])
def test_a_fraction_lies_between_zero_and_one(fraction):
    with pytest.raises(ValueError, match=r"fraction must lie in \(0, 1\)"):
        sso.Snap(fraction)
    with pytest.raises(ValueError, match=r"fraction must lie in \(0, 1\)"):
        sso.snap_times(logistic_run(np.geomspace(1, 10, 5)), fraction)


def test_snap_times_need_records():
    with pytest.raises(ValueError, match=r"run must have at least 3 recorded times, had 2"):
        sso.snap_times(logistic_run(np.array([1.0, 2.0])))
    with pytest.raises(ValueError, match=r"run must be Trajectory"):
        sso.snap_times(3)  # pyright: ignore[reportArgumentType]
