"""The figures of docs/theory.md, and the numbers behind them.

levels.png: how far attention moves, and its share on the common token, at five levels of the theory
on `single_common_token(10, 1000, 0.1, 10)`, rates (1, 0.1).
orders.png: how fast each limit is approached: slow attention in η_Z/η_Y on
`syn_medium(1, 2, 4, 5)` at t = 1000; the flows of an optimizer in the learning rate on
`syn_small()`, full batch, at rate times steps = 100. Takes two minutes:

    python scripts/theory_figures.py docs
"""

import sys
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator
from numpy.typing import NDArray

import scan_snap_ode as sso
from scan_snap_ode.figures import style

SHARP: dict[str, Any] = {"rtol": 1e-10, "atol": 1e-12}
# The colours of the error budget.
LOOKS = {
    "joint flow": (style.VERMILION, "-"),
    "adiabatic flow": (style.ORANGE, (0, (4, 1.5))),
    "modified flow": (style.PURPLE, "-"),
    "slow attention": (style.BLUE, (0, (4, 1.5))),
    "closed form": (style.GREY, ":"),
}


def levels(path: Path) -> None:
    """Five levels on one time axis."""
    classes = sso.single_common_token(10, 1000, 0.1, 10)
    rates, ts = sso.LearningRates(1.0, 0.1), np.geomspace(0.1, 1e6, 71)
    flows = (sso.JointFlow, sso.AdiabaticFlow, sso.ModifiedJointFlow, sso.SlowAttentionFlow)
    found = [sso.integrate(flow(classes), rates, ts) for flow in flows]
    found.append(sso.closed_form(classes, rates, ts))
    figure = style.sheet(9.4, 4.3)
    size, share = figure.subplots(1, 2)
    for (name, (colour, line)), run in zip(LOOKS.items(), found, strict=True):
        look = {"color": colour, "linestyle": line, "linewidth": 2.2, "label": name}
        moved = np.linalg.norm(np.asarray(run.attention_logits), axis=(1, 2))
        common = 100 * np.asarray(run.attention)[:, :, 0].mean(1)
        size.plot(ts, moved, **look)
        share.plot(ts, common, **look)
        shown = [int(np.argmin(abs(ts - t))) for t in (1, 10, 100, 1e3, 1e6)]
        print(
            f"{name:15s} |Z| {moved[shown].round(4)}  on the common token {common[shown].round(2)}"
        )
    size.set_yscale("log")
    style.tidy(size, "How far attention moves")
    size.set_ylabel("size of the attention logits, $|Z|$ ($L_2$)", fontsize=10)
    share.set_ylim(0, 11)
    style.tidy(share, "Attention on the common token")
    share.set_ylabel("share of $c$, class mean [%]", fontsize=10)
    times = sso.transition_times(rates, classes.vocab_size, classes.num_classes)
    for axes in (size, share):
        _log_time(axes)
        for text, time in (("$t_0'$", times.t0_prime), ("$t_0$", times.t0)):
            axes.axvline(float(time), color=style.GREY, linewidth=1, zorder=1)
            left = text == "$t_0'$"
            axes.annotate(text, (float(time), 0.02), (-3 if left else 3, 0), fontsize=11,
                          xycoords=("data", "axes fraction"), textcoords="offset points",
                          ha="right" if left else "left", va="bottom")  # fmt: skip
    figure.legend(*size.get_legend_handles_labels(), loc="outside lower center", ncols=5,
                  fontsize=10, frameon=False)  # fmt: skip
    style.few_colours(style.save(figure, path), path)


def _log_time(axes: Axes) -> None:
    axes.set_xscale("log")
    axes.set_xlim(0.1, 1e6)
    axes.xaxis.set_major_locator(LogLocator(numticks=9))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel("time $t$ [steps of SGD]", fontsize=10)


def limits() -> tuple[NDArray[np.float64], dict[str, NDArray[np.float64]]]:
    """Relative error of Z of both slow limits, by η_Z/η_Y."""
    classes, ratios = sso.syn_medium(1, 2, 4, 5), 10.0 ** -np.arange(0, 5.5, 0.5)
    rates = sso.LearningRates(1.0, ratios)

    def logits(flow: Any) -> NDArray[np.float64]:
        run = sso.integrate(flow(classes), rates, [1000.0], **SHARP)
        return np.asarray(run.attention_logits)[:, 0].reshape(len(ratios), -1)

    pairs = {
        "adiabatic → joint": (sso.AdiabaticFlow, sso.JointFlow),
        "slow → modified": (sso.SlowAttentionFlow, sso.ModifiedJointFlow),
    }
    errors = {}
    for name, (fast, limit) in pairs.items():
        a, b = logits(fast), logits(limit)
        errors[name] = np.linalg.norm(a - b, axis=1) / np.linalg.norm(b, axis=1)
    return ratios, errors


def orders() -> tuple[NDArray[np.floating], dict[str, NDArray[np.float64]]]:
    """Relative error of Z of the flows of an optimizer, by learning rate."""
    classes, rates = sso.syn_small(), 2.0 ** -np.arange(6)
    joint = sso.JointFlow(classes)
    cases = {
        "flow": (joint, 0.0),
        "finite step": (sso.FiniteStep(joint), 0.0),
        r"flow at $\eta/(1-\mu)$, $\mu$ = 0.9": (joint, 0.9),
        r"heavy ball, $\mu$ = 0.9": (sso.HeavyBall(joint, 0.9), 0.9),
        r"heavy ball, $\mu$ = 0.3": (sso.HeavyBall(joint, 0.3), 0.3),
    }
    errors: dict[str, list[float]] = {name: [] for name in cases}
    for rate in rates:
        own, steps = sso.LearningRates(rate, rate), round(100 / rate)
        exact = {
            mu: sso.train(classes, own, steps, batch_size=None, momentum=mu, record_at=[steps])
            for mu in (0.0, 0.3, 0.9)
        }
        for name, (flow, mu) in cases.items():
            seen = own if isinstance(flow, sso.HeavyBall) else own.with_momentum(mu)
            Z = sso.integrate(flow, seen, [float(steps)], **SHARP).attention_logits
            true = np.asarray(exact[mu].attention_logits)
            errors[name].append(float(np.linalg.norm(Z - true) / np.linalg.norm(true)))
    return rates, {name: np.array(values) for name, values in errors.items()}


def convergence(path: Path) -> None:
    """Both kinds of limit, with slopes."""
    figure = style.sheet(9.4, 4.9)
    slow, small = figure.subplots(1, 2)
    drawn = (
        (slow, *limits(), "Attention becomes slow", "ratio of rates $\\eta_Z/\\eta_Y$", -5),
        (small, *orders(), "Steps become small", "learning rate $\\eta_Y = \\eta_Z$", -4),
    )
    colours = {
        "adiabatic → joint": style.ORANGE,
        "slow → modified": style.BLUE,
        "flow": style.VERMILION,
        "finite step": style.GREEN,
    }
    rest = iter((style.GREY, style.BLACK, style.PURPLE))
    for axes, x, errors, title, label, last in drawn:
        for (name, values), marker in zip(errors.items(), "os^DP", strict=False):
            slope = np.polyfit(np.log(x[last:]), np.log(values[last:]), 1)[0]
            print(name, [f"{v:.2g}" for v in values], f"slope of the last {-last}: {slope:.3f}")
            colour = colours.get(name) or next(rest)
            axes.plot(x, values, marker + "-", color=colour, linewidth=1.6, markersize=5.5,
                      label=name)  # fmt: skip
        axes.set_xscale("log")
        axes.set_yscale("log")
        style.tidy(axes, title)
        axes.set_xlabel(label, fontsize=10)
        axes.set_ylabel("error of $Z$, relative $L_2$", fontsize=10)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=2, fontsize=9.5,
                    frameon=False)  # fmt: skip
    _guide(slow, 1e-4, 1e-2, 4e-5, 1)
    _guide(small, 1 / 12, 1 / 2, 4e-7, 2)
    small.set_xticks(2.0 ** -np.arange(6), [f"1/{2**k}" if k else "1" for k in range(6)])
    small.xaxis.set_minor_locator(NullLocator())
    style.few_colours(style.save(figure, path), path)


def _guide(axes: Axes, left: float, right: float, low: float, order: int) -> None:
    """A grey line of the given slope."""
    axes.plot((left, right), (low, low * (right / left) ** order), color=style.GREY, linewidth=1)
    axes.annotate(f"slope {order}", (right, low * (right / left) ** order), (4, -4), fontsize=9,
                  textcoords="offset points", va="top", color="#555555")  # fmt: skip


if __name__ == "__main__":
    sso.enable_double_precision()
    folder = Path(sys.argv[1])
    levels(folder / "levels.png")
    convergence(folder / "orders.png")
