"""`scan-snap theory`: the closed forms, printed, written and drawn."""

import csv
import shlex
from pathlib import Path

import jax
import numpy as np
import pytest
from command_line import PNG, read, tree
from scipy.special import lambertw
from typer.testing import CliRunner

import scan_snap_ode as sso
from scan_snap_ode import cli
from scan_snap_ode.figures import style
from scan_snap_ode.figures.theory import plot_theory


def table():
    """theory.csv of the first default folder, a row for each pair of rates and time."""
    with Path("scan-snap-out/theory-1/theory.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture
def undrawn(monkeypatch):
    """Pictures are made and not painted, which takes a second each."""
    monkeypatch.setattr(style, "save", lambda figure, path: path.touch())


@pytest.mark.parametrize("flag", ["--help", "-h"])
def test_it_explains_itself(flag):
    result = CliRunner().invoke(cli.app, ["theory", flag], env={"COLUMNS": "200", "TERM": "dumb"})
    assert result.exit_code == 0
    for text in ("--vocab-size", "--classes", "--c0", "--until", "--out", "1/((K-1) f0^4)"):
        assert text in result.output
    assert "scan-snap theory --vocab-size 34" in result.output  # an example
    assert tree() == ["text.txt"]


def test_it_is_among_the_commands(scan_snap):
    assert "theory" in scan_snap("--help").out


def test_it_writes_its_three_files(scan_snap):
    result = scan_snap(*shlex.split("theory --decoder 0.5,5 --c0 0.01 --records 50"))
    assert (result.code, result.err) == (0, "")
    last = "Written to scan-snap-out/theory-1: summary.json, theory.csv, theory.png"
    assert result.out.splitlines()[-1] == last
    out = Path("scan-snap-out/theory-1")
    assert (out / "theory.png").read_bytes().startswith(PNG)
    rates = sso.LearningRates([0.5, 5.0], 0.5)
    times = sso.transition_times(rates, 1000, 10)
    summary = read(out / "summary.json")
    asked = summary["setting"]
    assert (asked["command"], asked["decoder"], asked["c0"]) == ("theory", "0.5,5", 0.01)
    assert asked["until"] == 100 * times.t0[0]
    assert summary["delta"] == times.delta[0]
    assert summary["peak_speed"] == times.peak_speed[0]
    for i, moment in enumerate(summary["rates"]):
        assert moment["decoder"] == rates.decoder[i]
        for name in ("peak", "t0_prime", "t0", "crossing"):
            assert moment[name] == getattr(times, name)[i]
        h, eta = moment["h_at_t0"], moment["decoder"]
        residual = np.exp(1000 * h) + 999_000 * h - 1000 * eta * moment["t0"] / 10 - 1
        assert abs(residual) < 1e-8
        Gamma = 0.5 * 10 * (999 * h) ** 2 / (2 * eta)
        np.testing.assert_allclose(moment["B_at_t0"], np.log1p(4 * Gamma / 0.01) / 4, rtol=1e-12)
    rows = np.array([[float(x) for x in row.values()] for row in table()]).reshape(2, 50, 7)
    t = rows[0, :, 2]
    assert t[0] == 0
    np.testing.assert_allclose([t[1], t[-1]], [times.t0_prime[1] / 100, asked["until"]])
    clock = sso.decoder_clock(t, rates, 1000, 10)
    bound = sso.growth_bound(t, rates, 1000, 10, 0.01)
    for k, expected in enumerate((clock.h, clock.gamma, clock.Gamma, bound)):
        np.testing.assert_allclose(rows[:, :, 3 + k], expected, rtol=1e-12)
    np.testing.assert_array_equal(rows[:, :, :2], [[[0.5, 0.5]] * 50, [[5, 0.5]] * 50])


def test_it_prints_tables(scan_snap, undrawn):
    out = scan_snap(*shlex.split("theory --vocab-size 34 --classes 2 --decoder 1")).out
    lines = [line.split() for line in out.splitlines()]
    assert "δ = 0.4553" in out
    assert "M = 34 tokens, K = 2 classes, C0 = 1" in out
    head = ["η_Y", "η_Z", "γ", "peaks", "t0'", "t0", "crossing", "M", "h(t0)", "B(t0)"]
    # t0' = 2 ln 34, t0 = 2·1.4553 t0'; the rest from `theory` itself, as a guard
    moments = ["1", "0.5", "6.6", "7.1", "20.5", "19.9", "5.1864", "0.9863"]
    assert lines[lines.index(head) + 1] == moments
    start = lines.index(["t", "h", "M", "h", "γ", "Γ", "B"])
    rows = lines[start + 1 : lines.index([], start)]
    assert len(rows) == 8
    assert all(abs(34 * float(row[1]) / float(row[2]) - 1) < 2e-3 for row in rows)
    t = [float(row[0].replace(",", "")) for row in rows]
    assert t[-1] == round(100 * 20.528, 1)
    assert np.all(np.diff(np.log(t[1:])) > 1)  # evenly on a log axis


@pytest.mark.parametrize(("until", "first"), [("0.5", 0.005), ("1e-300", 1e-302)])
def test_it_ends_where_it_was_asked_to(scan_snap, undrawn, until, first):
    """Before anything happens; with as few records as there can be."""
    result = scan_snap("theory", "--until", until, "--decoder", 1, "--records", 3)
    assert (result.code, result.err) == (0, "")
    np.testing.assert_allclose([float(row["t"]) for row in table()], [0, first, float(until)])


def test_single_precision(scan_snap, undrawn):
    """Long after everything has happened."""
    options = "--precision single --decoder 1 --records 3 --until 1e15"
    result = scan_snap("theory", *options.split())
    assert (result.code, result.err) == (0, "")
    values = [float(table()[-1][name]) for name in ("t", "h", "gamma", "Gamma", "B")]
    assert values[1:] == np.array(values[1:], np.float32).tolist()
    jax.config.update("jax_enable_x64", True)
    rates = sso.LearningRates(1.0, 0.5)
    clock = sso.decoder_clock(1e15, rates, 1000, 10)
    bound = sso.growth_bound(1e15, rates, 1000, 10, 1.0)
    np.testing.assert_allclose(values[1:], [clock.h, clock.gamma, clock.Gamma, bound], rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--vocab-size 3", "--vocab-size must be an integer of at least 4, was 3."),
        ("--classes 0", "--classes must be an integer of at least 1, was 0."),
        ("--c0 0", "--c0 must be positive and finite, was 0.0."),
        ("--decoder 1,-2", "--decoder must be positive and finite, was -2.0."),
        ("--decoder 1,nan", "--decoder must be positive and finite, was nan."),
        ("--decoder 1,,2", "--decoder must be numbers separated by commas, was '1,,2'."),
        ("--decoder fast", "--decoder must be numbers separated by commas, was 'fast'."),
        ("--attention 0", "--attention must be positive and finite, was 0.0."),
        ("--until 0", "--until must be positive and finite, was 0.0."),
        ("--until inf", "--until must be positive and finite, was inf."),
        ("--records 2", "--records must be an integer of at least 3, was 2."),
        ("--until 1e308", "--until and the other numbers must fit double precision, did not at"),
        ("--seed -1", "--seed must be an integer of at least 0, was -1."),
        ("syn-small", "Got unexpected extra argument"),
    ],
)
def test_bad_input_is_said_in_one_line(scan_snap, options, message):
    result = scan_snap("theory", *shlex.split(options))
    assert result.err.startswith(f"scan-snap: error: {message}")
    assert result.err.count("\n") == 1
    assert (result.code, result.out) == (2, "")
    assert tree() == ["text.txt"]


# ---------------------------------------------------------------------------------- the picture


def test_the_curves_are_the_formulas():
    """Of the times above 0, with t₀' and t₀ as points where there are several rates."""
    t, rates = np.geomspace(0.1, 1e4, 60), sso.LearningRates([0.5, 5.0], [0.5, 0.1])
    figure = plot_theory(np.append(0, t), rates, 1000, 10, 0.3)
    clock = sso.decoder_clock(t, rates, 1000, 10)
    values = (1000 * clock.h, clock.gamma, clock.Gamma, sso.growth_bound(t, rates, 1000, 10, 0.3))
    times = sso.transition_times(rates, 1000, 10)
    assert len(figure.axes) == 4
    for axes, expected in zip(figure.axes, values, strict=True):
        *curves, early, late = axes.lines
        for curve, of_pair in zip(curves, expected, strict=True):
            np.testing.assert_array_equal(curve.get_xdata(), t)
            np.testing.assert_array_equal(curve.get_ydata(), of_pair)
        np.testing.assert_array_equal(early.get_xdata(), times.t0_prime)
        np.testing.assert_array_equal(late.get_xdata(), times.t0)
        assert early.get_markerfacecolor() != late.get_markerfacecolor()
    heights = np.array([axes.lines[-1].get_ydata() for axes in figure.axes])[0]
    np.testing.assert_allclose(heights, -lambertw(-1 / 999, -1).real, rtol=1e-2)
    (legend,) = figure.legends
    named = [text.get_text() for text in legend.get_texts()]
    assert named[:2] == ["$\\eta_Y$ = 0.5, $\\eta_Z$ = 0.5", "$\\eta_Y$ = 5, $\\eta_Z$ = 0.1"]
    assert named[2:] == ["$t_0'$", "$t_0$"]


def test_one_pair_of_rates_has_lines_at_its_times():
    figure = plot_theory(np.geomspace(0.1, 1e4, 9), sso.LearningRates(1.0, 0.5), 1000, 10, 1.0)
    times = sso.transition_times(sso.LearningRates(1.0, 0.5), 1000, 10)
    for axes in figure.axes:
        _, early, late = axes.lines
        np.testing.assert_array_equal(early.get_xdata(), [times.t0_prime] * 2)
        np.testing.assert_array_equal(late.get_xdata(), [times.t0] * 2)
        assert [text.get_text() for text in axes.texts] == ["$t_0'$", "$t_0$"]
    early = plot_theory(np.array([0.1, 1]), sso.LearningRates(1.0, 0.5), 1000, 10, 1.0)
    assert all(len(axes.lines) == 1 for axes in early.axes)


def test_what_cannot_be_drawn():
    with pytest.raises(ValueError, match=r"^rates must have at most one axis to be drawn, had 2"):
        plot_theory([1.0, 2.0], sso.LearningRates([[1.0]], 0.5), 1000, 10, 1.0)
    with pytest.raises(ValueError, match=r"^t must hold two times above 0 or more, held 1"):
        plot_theory([0.0, 2.0], sso.LearningRates(1.0, 0.5), 1000, 10, 1.0)
