"""The error budget: its ladder, its numbers, and WikiText-2 as measured."""

import os

import numpy as np
import pytest

import scan_snap_ode as sso


@pytest.fixture(scope="module")
def windows():
    stream = sso.load_corpus("python-reference")
    return sso.windows(stream, 16, query=2, num_classes=5, vocab_size=40, words_only=True)


@pytest.fixture(scope="module")
def budget(windows):
    rates = sso.LearningRates(0.5, 0.5)
    return sso.error_budget(windows, rates, [0, 1, 10, 40], num_seeds=3, batch_size=16)


def test_levels_run_from_training_to_the_theory(budget):
    assert list(budget.runs) == ["SGD", "gradient descent", "window flow", "class flow"]
    assert [(s.above, s.below) for s in budget.steps] == [
        ("SGD", "gradient descent"),
        ("gradient descent", "window flow"),
        ("window flow", "class flow"),
    ]
    np.testing.assert_array_equal(budget.ts, [0, 1, 10, 40])
    np.testing.assert_allclose(budget.shares[:, -1].sum(), 1)


def test_distances_are_those_of_their_definitions(budget, windows):
    step = budget.distance("window flow", "class flow")
    window, classes = budget.runs["window flow"], budget.runs["class flow"]
    Z, other = np.asarray(window.attention_logits[-1]), np.asarray(classes.attention_logits[-1])
    np.testing.assert_allclose(
        step.logits[-1], np.linalg.norm(other - Z) / np.linalg.norm(Z), rtol=1e-12
    )
    variation = np.abs(np.asarray(window.attention[-1] - classes.attention[-1])).sum(-1) / 2
    np.testing.assert_allclose(
        step.attention[-1], variation @ np.asarray(windows.classes().weights), rtol=1e-12
    )
    assert step.logits[0] == 0
    assert step.attention[0] == 0
    # Neither SGD nor gradient descent has moved Z after one step from zero; the flow has.
    assert np.isnan(budget.distance("gradient descent", "window flow").logits[1])
    Z = np.asarray(budget.runs["SGD"].attention_logits[:, -1])
    strays = np.sqrt(np.sum((Z - Z.mean(0)) ** 2) / 2) / np.linalg.norm(Z.mean(0))
    np.testing.assert_allclose(budget.spread("SGD")[-1], strays, rtol=1e-12)


def test_losses_of_all_levels_are_taken_on_the_windows(budget, windows):
    for level in budget.runs:
        np.testing.assert_allclose(budget.loss(level)[:, 0], np.log(40), rtol=1e-12)
    np.testing.assert_array_equal(budget.loss("window flow")[0], budget.runs["window flow"].loss)
    assert (budget.loss("class flow")[0] != np.asarray(budget.runs["class flow"].loss))[1:].all()


def test_small_steps_and_large_batches_bring_sgd_to_the_window_flow(windows):
    """Neighbours meet where their assumption holds: with rates ten times smaller, at the same
    rates·steps, gradient descent is about ten times nearer to the flow."""
    levels = ["gradient descent", "window flow"]
    gaps = []
    for shrink in (1, 10):
        rates = sso.LearningRates(0.5 / shrink, 0.5 / shrink)
        found = sso.error_budget(windows, rates, [40 * shrink], levels=levels)
        gaps.append(found.steps[0].logits[-1])
    assert 8 < gaps[0] / gaps[1] < 12


def test_print_names_every_assumption_and_share(budget):
    text = repr(budget)
    for phrase in ("no sampling noise", "infinitely small steps", "infinitely long windows"):
        assert phrase in text
    assert "after 40 steps" in text
    assert "mean of 3 seeds" in text
    assert f"{budget.steps[-1].logits[-1]:.1%}" in text


def test_data_carry_labels(budget):
    data = budget.to_xarray()
    assert data["logits_distance"].sel(step="window flow → class flow").sizes == {"time": 4}
    assert data["time"].attrs["units"] == "steps"
    assert data["entropy"].attrs["units"] == "nats"
    np.testing.assert_array_equal(data["share"], budget.shares)
    end = data["final_attention"].sel(level="class flow")
    np.testing.assert_allclose(end, budget.runs["class flow"].attention[-1], rtol=1e-12)
    assert str(end["token_word"].values[0]) == budget.source.vocabulary[int(end["token"][0])]


def test_figure_shows_words_levels_and_costs(budget):
    figure = budget.plot()
    upper, lower = figure.subfigs
    words = {label.get_text() for axes in upper.axes for label in axes.get_yticklabels()}
    assert words <= set(budget.source.vocabulary)
    entropy, loss, bars = lower.axes
    assert [line.get_label() for line in entropy.lines] == list(budget.runs)
    np.testing.assert_array_equal(loss.lines[2].get_ydata(), budget.loss("window flow")[0, 1:])
    widths = [bar.get_width() for bar in bars.patches]
    np.testing.assert_allclose(widths, [100 * s.logits[-1] for s in budget.steps])


def test_classes_have_a_ladder_too():
    rates = sso.LearningRates(0.2, 0.2)
    budget = sso.error_budget(sso.syn_small(), rates, [0, 100], num_seeds=2, context_length=512)
    assert list(budget.runs) == ["SGD", "gradient descent", "class flow"]
    assert budget.distance("SGD", "class flow").assumes == (
        "no sampling noise, infinitely long windows, infinitely small steps"
    )
    assert budget.distance("SGD", "class flow").logits[-1] < 0.05


def test_momentum_reaches_the_flow_as_larger_rates():
    rates = sso.LearningRates(0.01, 0.01)
    levels = ["gradient descent", "class flow"]
    budget = sso.error_budget(sso.syn_small(), rates, [2000], levels=levels, momentum=0.9)
    assert budget.steps[0].logits[-1] < 0.02
    np.testing.assert_allclose(budget.runs["class flow"].rates.decoder, 0.1)


@pytest.mark.skipif("SCAN_SNAP_DATA" not in os.environ, reason="needs WikiText in $SCAN_SNAP_DATA")
def test_wikitext_as_measured_while_designing():
    """Valid split, V = 300, T = 65, queries the/of/in/to, 24 pairs, rates 1/2, batch 32: SGD stays
    within 5 % (step 100) and 6 % (step 1000) of the window flow in Z; the class flow is off by
    39 % and 81 %."""
    stream = sso.load_corpus("wikitext-2", "valid")
    words = ["the", "of", "in", "to"]
    windows = sso.windows(stream, 65, query=words, num_classes=24, vocab_size=300)
    assert len(windows) == 5935
    budget = sso.error_budget(
        windows, sso.LearningRates(0.5, 0.5), [100, 1000], batch_size=32,
        levels=["SGD", "window flow", "class flow"],
    )  # fmt: skip
    flow = np.asarray(budget.runs["window flow"].attention_logits)
    sgd = np.asarray(budget.runs["SGD"].attention_logits).mean(0)
    away = np.linalg.norm(sgd - flow, axis=(1, 2)) / np.linalg.norm(flow, axis=(1, 2))
    assert away[0] < 0.05
    assert away[1] < 0.06
    np.testing.assert_allclose(budget.steps[1].logits, [0.39, 0.81], atol=0.005)


def test_averages_over_classes_go_by_weight(budget, windows):
    weights = np.asarray(windows.classes().weights)
    assert np.ptp(weights) > 0.1
    entropy = np.asarray(budget.runs["class flow"].entropy)
    np.testing.assert_allclose(budget.entropy("class flow")[0], entropy @ weights, rtol=1e-12)


def test_a_share_is_known_where_its_step_is(budget):
    assert np.isnan(budget.shares[1, 1])
    np.testing.assert_allclose(np.nansum(budget.shares[:, 1]), 1)


def test_momentum_is_named_among_the_assumptions():
    rates = sso.LearningRates(0.1, 0.1)
    levels = ["gradient descent", "class flow"]
    budget = sso.error_budget(sso.syn_small(), rates, [10], levels=levels, momentum=0.9)
    assert budget.steps[0].assumes == "infinitely small steps, momentum as larger rates"
