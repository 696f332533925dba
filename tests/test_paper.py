"""The paper's figures: what they compare, and that the comparison can fail."""

import json
from dataclasses import dataclass, replace
from typing import Any

import jax
import matplotlib.figure
import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import class_sets
from scipy.optimize import brentq

import scan_snap_ode as sso
from scan_snap_ode import measures
from scan_snap_ode.paper import FIGURES, Agreement, PaperFigure, published, reproduce
from scan_snap_ode.paper.index import write_index
from scan_snap_ode.paper.rate_ratios import RateRatio
from scan_snap_ode.paper.text import TextAttention, TextEntropy, load_text


def worst(agreements):
    return max(a.deviation for a in agreements)


def test_figures_3_to_12_are_there():
    assert sorted(FIGURES) == list(range(3, 13))
    for number, kind in FIGURES.items():
        figure = kind()
        assert figure.number == number
        assert figure.title
        assert figure.setting == figure.setting  # no arrays, which would not compare
        json.dumps(figure.setting)


@pytest.mark.parametrize("number", [3, 8, 9])
def test_closed_forms_lie_on_the_numerical_flow(number):
    found = reproduce(FIGURES[number]())
    assert len(found.agreements) == {3: 4, 8: 8, 9: 4}[number]
    assert all(a.met for a in found.agreements)
    exact = [a for a in found.agreements if a.unit in ("absolute", "relative")]
    assert worst(exact) <= 1e-6
    assert isinstance(found.draw(), matplotlib.figure.Figure)


@pytest.mark.parametrize(("number", "name"), [(3, "chi"), (8, "h"), (9, "B")])
def test_a_flow_off_its_closed_form_is_noticed(number, name):
    figure = FIGURES[number]()
    data = figure.compute(False, None)
    wrong = data.copy(deep=True)
    off = 1e-4 * (wrong["level"].values[:, None] == "numerical flow")
    wrong[name].values[..., -1] *= 1 + off
    assert all(a.met for a in figure.compare(data))
    assert not all(a.met for a in figure.compare(wrong))


def test_the_numerical_flow_knows_no_closed_form(monkeypatch):
    """A wrong clock in the closed form is noticed: the flow integrates the decoder by itself."""
    from scan_snap_ode.paper import closed_forms

    right = closed_forms.growth_bound
    monkeypatch.setattr(closed_forms, "growth_bound", lambda *given: 1.001 * right(*given))
    for number in (3, 9):
        assert not all(row.met for row in reproduce(FIGURES[number]()).agreements)


def test_figure_3_is_marked_at_t0():
    """χ = exp(2B): at t₀ it obeys Theorem 4 for M = 1,000, K = 10, in numbers of its own."""
    data = FIGURES[3]().compute(False, None)
    u = brentq(lambda u: np.exp(u) - 999 * u, 1, 20, xtol=1e-14)
    np.testing.assert_allclose(data["t0"], 2 * u * 10 / np.array([0.5, 1, 2, 5]), rtol=1e-12)
    assert float(data["chi"].sel(level="closed form").isel(time=0).max()) == 1


def test_figure_4_agrees_with_the_authors():
    """Five seeds of ours against five of theirs, all four statistics, both panels."""
    figure = FIGURES[4].fast()
    found = reproduce(figure)
    assert len(found.agreements) == 16
    assert worst(found.agreements) <= 3
    data = found.data
    for step, column in ((0, (2.8993, 2.1513, 0.6452, 0.0645)),):  # both panels start alike
        for name, value in zip(published.STATISTICS, column, strict=True):
            np.testing.assert_allclose(data[name].sel(step=step), value, atol=5e-5)
            np.testing.assert_allclose(data[f"flow_{name}"].sel(step=step), value, atol=5e-5)
    # The flow lies on the mean of the seeds at (1, 1).
    ours = data["distinct_entropy"].values[:, 0, 100]
    gap = abs(float(data["flow_distinct_entropy"][0, 100]) - ours.mean())
    assert gap < 3 * ours.std(ddof=1) / np.sqrt(len(ours)) + 1e-3
    # Training without momentum is another experiment, and is told apart.
    wrong = replace(figure, momentum=0.0)
    assert worst(wrong.compare(wrong.compute(False, None))) > 10


@pytest.mark.usefixtures("usual_promotion")
def test_figure_5_is_by_adam():
    figure = FIGURES[5].fast(num_seeds=1, steps=5)
    data = figure.compute(False, None)
    assert data["attention"].shape == (3, 6, 2, 30)
    run = sso.train(
        sso.syn_small(), sso.LearningRates(0.5, 0.5), 5, optimizer="adam", record_at=[0, 5]
    )
    np.testing.assert_allclose(data["attention"][1, 5], run.attention[-1], rtol=1e-12)
    assert figure.compare(data) == []
    assert isinstance(figure.draw(data), matplotlib.figure.Figure)


def test_figure_6_agrees_with_the_authors():
    """The 32 published cells, ten seeds from 0: at most one beyond 3 standard errors, none beyond
    4; and the flow from the same start where noise is small."""
    figure = RateRatio(num_query=(1, 3), with_flow=False)
    found = reproduce(figure)
    cells = [a for a in found.agreements if a.unit == "combined standard errors"]
    assert len(cells) == 32
    assert worst(cells) <= 4
    assert sum(a.deviation > 3 for a in cells) <= 1
    assert all(a.met for a in found.agreements)
    wrong = found.data.copy(deep=True)
    wrong["entropy"].values += 0.1
    assert not all(a.met for a in figure.compare(wrong))
    assert replace(figure, steps=99).compare(found.data) == []  # nobody published that


def test_figure_6_flow_starts_where_training_does():
    figure = RateRatio(num_query=(3,), attention=(0.5,), ratio=(1.0, 2.0), num_seeds=3)
    data = figure.compute(False, None)
    gap = (data["flow_entropy"] - data["entropy"]).values[0, 0]  # (ratio, seed)
    assert np.abs(gap.mean(-1)).max() < 0.015
    # Training depends on the start far more than on the batches, and the flow knows of it.
    spread = data["entropy"].values[0, 0]
    follows = np.corrcoef((data["flow_entropy"].values[0, 0] - spread.mean(-1)[:, None]).ravel(),
                          (spread - spread.mean(-1)[:, None]).ravel())[0, 1]  # fmt: skip
    assert follows > 0.5


def test_figures_6_11_and_12_share_their_runs(monkeypatch):
    from scan_snap_ode.paper import rate_ratios

    given = {"num_query": (1,), "num_seeds": 1, "steps": 3, "with_flow": False}
    one = FIGURES[6](**given).compute(False, None)
    monkeypatch.setattr(rate_ratios, "train", None)
    for number in (11, 12):
        other = FIGURES[number](**given).compute(False, None)
        xr.testing.assert_identical(one, other)
        assert isinstance(FIGURES[number](**given).draw(other), matplotlib.figure.Figure)
    recall = one["recall"].values
    assert np.all(np.diff(recall, axis=-1) <= 0)
    assert recall.max() == 1
    assert recall.min() == 0


@given(class_sets(), st.integers(0, 2**32 - 1))
@settings(max_examples=25, deadline=None)
def test_observables_are_their_definitions(classes, seed):
    rng = np.random.default_rng(seed)
    M = classes.vocab_size
    Z0 = rng.normal(size=(M, M))
    run = sso.integrate(
        sso.JointFlow(classes), sso.LearningRates(1.0, 1.0), [0.0], init=(np.zeros((M, M)), Z0)
    )
    thresholds = [0.0, 0.1, 0.5]
    recall = measures.recall(run, thresholds)[0]
    for i in range(classes.num_classes):
        P = np.asarray(classes.probs[i])
        c = P * np.exp(Z0[classes.query[i]])
        c /= c.sum()
        own = c[classes.distinct_tokens(i)]
        common = 1 - own.sum()
        np.testing.assert_allclose(measures.common_mass(run)[0, i], common, atol=1e-12)
        np.testing.assert_allclose(measures.largest_weight(run)[0, i], c.max(), rtol=1e-12)
        found = measures.distinct_entropy(run)[0, i]
        if len(own) == 0:
            assert np.isnan(found)
            assert np.isnan(recall[i]).all()
            continue
        share = own / own.sum()
        np.testing.assert_allclose(found, -(share * np.log(share)).sum(), atol=1e-12)
        np.testing.assert_allclose(recall[i], [(own > bound).mean() for bound in thresholds])


def test_thresholds_must_be_numbers():
    run = sso.integrate(sso.JointFlow(sso.syn_small()), sso.LearningRates(1.0, 1.0), [0.0])
    with pytest.raises(
        ValueError, match=r"thresholds must be a list of numbers, was of shape \(\)"
    ):
        measures.recall(run, 0.5)
    with pytest.raises(ValueError, match="thresholds must be real numbers"):
        measures.recall(run, ["a"])


def test_agreement_in_combined_standard_errors():
    ours = np.array([1.0, 2.0, 3.0, 4.0])  # mean 2.5, std sqrt(5/3)
    row = Agreement.of_means("x", ours, (3.0, 0.9), 9)
    expected = 0.5 / np.sqrt(5 / 3 / 4 + 0.09)
    assert row.deviation == pytest.approx(expected)
    assert (row.ours, row.reference, row.bound, row.met) == (2.5, 3.0, 3, True)
    assert not replace(row, bound=expected / 2).met
    assert not replace(row, deviation=np.nan).met


def test_one_seed_has_no_spread_and_still_compares():
    row = Agreement.of_means("x", np.array([1.0]), (1.1, 0.3), 9)
    assert row.deviation == pytest.approx(1.0)


@dataclass(frozen=True)
class Tiny(PaperFigure):
    number = 3
    title = "a figure"
    chosen = ("everything",)
    size: int = 3

    def compute(self, progress, checkpoints):
        return xr.Dataset({"y": ("x", np.arange(self.size))})

    def compare(self, data):
        return [Agreement("y", 1.0, np.nan, 2.0, 1.0, "units")]

    def draw(self, data):
        from scan_snap_ode.figures import style

        figure = style.sheet(2, 2)
        figure.subplots().plot(data["y"])
        return figure


def test_a_figure_is_saved_with_all_that_it_was(tmp_path):
    paths = reproduce(Tiny()).save(tmp_path)
    assert sorted(p.name for p in paths) == [f"figure_3.{k}" for k in ("json", "nc", "pdf", "png")]
    assert (tmp_path / "figure_3.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "figure_3.pdf").read_bytes().startswith(b"%PDF")
    record = json.loads((tmp_path / "figure_3.json").read_text("utf-8"))
    assert record["setting"] == {"figure": 3, "size": 3, "precision": "double"}
    assert record["versions"]["jax"] == jax.__version__
    assert record["agreements"][0] == {
        "what": "y",
        "ours": 1.0,
        "reference": None,
        "deviation": 2.0,
        "bound": 1.0,
        "unit": "units",
        "met": False,
    }
    with xr.open_dataset(tmp_path / "figure_3.nc") as data:
        assert data["y"].values.tolist() == [0, 1, 2]
        assert data.attrs["size"] == "3"
    page = write_index(tmp_path).read_text("utf-8")
    assert "| [3](#figure-3) | a figure | 0 of 1 |" in page
    assert "| y | 1 | – | 2 units | ≤ 1 | **no** |" in page
    assert "![Figure 3](figure_3.png)" in page
    assert "- everything" in page


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A text of 16 words, in which each is mostly followed by the next."""
    rng = np.random.default_rng(1)
    steps = rng.choice([1, 1, 1, 5], 4000)
    words = [f"w{k}" for k in np.cumsum(steps) % 16]
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("\n".join(" ".join(words[i : i + 20]) for i in range(0, 4000, 20)), "utf-8")
    return str(path)


SMALL: dict[str, Any] = {
    "width": 16,
    "ffn_width": 16,
    "batch_size": 4,
    "context_length": 8,
    "steps": 20,
    "record_every": 5,
}


def test_a_text_is_held_out_in_its_own_vocabulary(text):
    full = load_text(text, None, None)
    assert len(full.train) == 3600
    assert len(full.valid) == 400
    assert set(full.vocabulary) == {f"w{k}" for k in range(16)}
    assert full.valid.max() < 16
    cut = load_text(text, None, 5)
    assert len(cut.vocabulary) == 5
    assert cut.vocabulary[-1] == "<unk>"
    kept = np.isin(np.array(full.vocabulary)[full.train], cut.vocabulary)
    np.testing.assert_array_equal(cut.train == 4, ~kept)


def test_figure_7_records_the_lowest_layer(text):
    figure = TextAttention(corpus=text, layers=(1, 2), **SMALL)
    found = reproduce(figure)
    data = found.data
    assert data["attention"].shape == (2, 5, 1, 8, 8)
    np.testing.assert_allclose(data["attention"].sum("seen"), 1, rtol=1e-5)
    c = data["attention"].values[:, :, 0]
    H = -np.where(c > 0, c * np.log(np.where(c > 0, c, 1)), 0).sum(-1).mean(-1)
    np.testing.assert_allclose(data["entropy"], H, rtol=1e-6)
    moved = np.abs(np.diff(c, axis=1)).sum(-1).mean(-1) / 2 / 5
    np.testing.assert_allclose(data["movement"], moved, rtol=1e-6)
    assert len(found.agreements) == 6
    assert isinstance(found.draw(), matplotlib.figure.Figure)
    assert data["loss"].values[:, -5:].mean() < data["loss"].values[:, 0].mean()
    rising = data.copy(deep=True)
    rising["entropy"].values[:] = np.arange(1.0, 6)
    met = {row.what: row.met for row in figure.compare(rising)}
    assert not any(met[f"1 layer: {what}"] for what in (
        "entropy at the end [nats]", "fall of entropy per iteration, last tenth"))  # fmt: skip


def test_figure_10_measures_the_whole_of_the_held_out_text(text):
    figure = TextEntropy(corpus=text, rates=(0.5, 2.0), num_seeds=2, **SMALL)
    data = figure.compute(False, None)
    assert data["entropy"].shape == (2, 2, 5)
    assert np.all(data["entropy"] > 0)
    assert np.all(data["entropy"][:, :, 0] == data["entropy"][0, :, 0])  # the seed's own start
    assert np.all(data["entropy"][:, :, 0] < data["uniform"])
    assert float(data["uniform"]) == pytest.approx(np.log(np.arange(1, 9)).mean())
    assert isinstance(figure.draw(data), matplotlib.figure.Figure)
    rows = figure.compare(data)
    last = data["entropy"].values[:, :, -1]
    error = np.sqrt((last.var(1, ddof=1) / 2).sum())
    assert rows[0].deviation == pytest.approx((last[1].mean() - last[0].mean()) / error)
    assert rows[0].met == (rows[0].deviation <= -3)
    reversed_ = data.assign(entropy=-data["entropy"])
    assert figure.compare(reversed_)[0].deviation == pytest.approx(-rows[0].deviation)
    one = replace(figure, rates=(0.5,))
    assert one.compare(data.isel(rate=[0])) == []
    # A seed is the same run, whatever others there are.
    alone = replace(figure, rates=(2.0,), num_seeds=1, seed=1).compute(False, None)
    np.testing.assert_array_equal(alone["entropy"][0, 0], data["entropy"][1, 1])
