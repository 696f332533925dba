"""Solves that fail: what they say, and what they leave."""

import equinox as eqx
import jax
import numpy as np
import pytest

import scan_snap_ode as sso

rates = sso.LearningRates(1.0, 1.0)
square = np.zeros((34, 34))


def integrate(rates=rates, **options):
    return sso.integrate(sso.JointFlow(sso.syn_small()), rates, **options)


def test_a_failed_solve_says_where_why_and_what_to_try():
    with pytest.raises(sso.SolveError) as caught:
        integrate(ts=[1, 1000], max_steps=5)
    head, advice = str(caught.value).split(" of 1000. ")
    start, reached = head.rsplit(" ", 1)
    assert start == "The solve failed: max_steps = 5 was used up, at t ="
    assert 0 < float(reached) < 1000
    assert advice == (
        "Loosen rtol or atol, raise max_steps, or pass a stiff solver (diffrax.Kvaerno5())."
    )


def test_a_failed_solve_among_many_is_counted_and_found():
    fast = sso.LearningRates(np.array([[1e-3, 1e-3], [10.0, 10.0]]), 1.0)
    with pytest.raises(
        sso.SolveError, match=r"^2 of 4 solves failed \(the first at flat index 2\)"
    ):
        integrate(rates=fast, ts=[50], max_steps=12)


def test_without_throw_a_failure_is_a_status_and_nan():
    pair = sso.LearningRates(np.array([1e-3, 10.0]), 1.0)
    ts = [1e-3, 50.0]
    run = integrate(rates=pair, ts=ts, max_steps=12, throw=False)
    assert run.status.tolist() == [sso.Status.SUCCESS, sso.Status.MAX_STEPS]
    for array in (run.attention_logits, run.decoder):
        assert np.isfinite(array[0]).all()
        assert np.isfinite(array[1, 0]).all()
        assert np.isnan(array[1, 1]).all()
    alone = integrate(rates=sso.LearningRates(1e-3, 1.0), ts=ts)
    assert np.allclose(run.decoder[0], alone.decoder, rtol=1e-6)
    assert "1 of 2 runs failed" in repr(run)


def test_values_that_overflow_are_a_status():
    run = integrate(init=(square + 1e308, square), ts=[1.0], max_steps=50, throw=False)
    assert run.status != sso.Status.SUCCESS
    assert np.isnan(run.decoder).all()
    assert (run.stats["accepted_steps"], run.stats["rejected_steps"]) == (0, 50)


def test_a_failed_solve_inside_jit_says_so_too():
    solve = eqx.filter_jit(lambda rates: integrate(rates=rates, ts=[1000.0], max_steps=5).decoder)
    with pytest.raises(RuntimeError, match=r"A solve failed\. Loosen rtol or atol"):
        jax.block_until_ready(solve(rates))
