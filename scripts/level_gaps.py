"""How far slow attention is from the joint flow: the tables of docs/paper-notes.md, as Markdown.

Slow attention assumes two things on top of the joint flow: that attention is slow (joint →
adiabatic, modified → slow) and the modified gradient (joint → modified, adiabatic → slow). From
Y = Z = 0, in the settings below, the tables give at each time

- |Z| of one level over |Z| of another (L2 over all entries),
- the cosine of the angle between Z of slow attention and of the joint flow,
- |Z_slow − Z_joint|/|Z_joint|, as it is and after the best re-timing of slow attention.

Re-timing may look a thousand times beyond the last time that is shown. Takes two minutes:

    python scripts/level_gaps.py            # prints
    python scripts/level_gaps.py gaps.md    # writes as well
"""

import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import scan_snap_ode as sso
from scan_snap_ode import files, measures

FLOWS: dict[str, Any] = {
    "joint": sso.JointFlow,
    "modified": sso.ModifiedJointFlow,
    "adiabatic": sso.AdiabaticFlow,
    "slow": sso.SlowAttentionFlow,
}
A_DECADE = 10  # records
HEADER = (
    "t",
    "slow/joint",
    "modified/joint",
    "slow/adiabatic",
    "adiabatic/joint",
    "cosine",
    "error",
    "re-timed",
)


class Setting(NamedTuple):
    """What is solved, and at which powers of ten it is shown."""

    name: str
    classes: sso.SequenceClasses
    rates: tuple[float, float]
    last: int


def settings() -> list[Setting]:
    """From the paper's small problem to strong and weak overlap, at small and large ratios."""
    medium, small = sso.syn_medium(1, 2, 4, 5), sso.syn_small()
    ten, two = sso.single_common_token(10, 1000, 0.1, 10), sso.syn_medium(1, 2)
    weak = sso.single_common_token(10, 1000, 0.02, 10)
    return [
        Setting("`syn_medium(1, 2, 4, 5)`", medium, (1.0, 0.1), 6),
        Setting("`single_common_token(10, 1000, 0.1, 10)`", ten, (1.0, 0.1), 6),
        Setting("`single_common_token(10, 1000, 0.02, 10)`", weak, (1.0, 0.1), 6),
        Setting("`syn_medium(1, 2)`", two, (1.0, 1e-3), 5),
        Setting("`syn_small()`", small, (1.0, 1.0), 5),
        Setting("`syn_small()`", small, (1.0, 1e-3), 5),
    ]


def rows(setting: Setting) -> list[list[float]]:
    """A row of numbers for each power of ten."""
    shown = [A_DECADE * (k + 1) for k in range(setting.last + 1)]
    end = shown[-1] + 1
    ts = 10.0 ** (np.arange(end + 3 * A_DECADE) / A_DECADE - 1)
    rates = sso.LearningRates(*setting.rates)

    def logits(name: str, ts: NDArray[np.float64]) -> NDArray[np.float64]:
        flow = FLOWS[name](setting.classes)
        return np.asarray(sso.integrate(flow, rates, ts, rtol=1e-8, atol=1e-11).attention_logits)

    # Only slow attention is solved beyond what is shown, for re-timing.
    longer = logits("slow", ts)
    Z = {name: logits(name, ts[:end]) for name in FLOWS if name != "slow"} | {"slow": longer[:end]}
    beyond = np.full_like(longer[end:], np.nan)  # counts for nothing
    warp = measures.time_warp(ts, longer, np.concatenate([Z["joint"], beyond]))
    size = {name: np.linalg.norm(z, axis=(1, 2)) for name, z in Z.items()}
    along = np.sum(Z["slow"] * Z["joint"], axis=(1, 2)) / (size["slow"] * size["joint"])
    error = np.linalg.norm(Z["slow"] - Z["joint"], axis=(1, 2)) / size["joint"]
    columns: list[NDArray[np.float64]] = [
        size["slow"] / size["joint"],
        size["modified"] / size["joint"],
        size["slow"] / size["adiabatic"],
        size["adiabatic"] / size["joint"],
        along,
        error,
        warp.distance[:end],
    ]
    return [[ts[k], *(float(column[k]) for column in columns)] for k in shown]


def markdown(setting: Setting) -> str:
    """The setting and its table."""
    decoder, attention = setting.rates
    lines = [
        f"{setting.name}, rates ({decoder:g}, {attention:g}):",
        "",
        f"| {' | '.join(HEADER)} |",
        "|" + "---:|" * len(HEADER),
    ]
    for t, *values in rows(setting):
        *ratios, cosine, error, left = values
        cells = [f"{t:,.0f}", *(_number(x) for x in (*ratios, error))]
        cells[-1:-1] = [f"{cosine:.3f}"]
        cells.append(f"{left:.3f}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _number(value: float) -> str:
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


if __name__ == "__main__":
    sso.enable_double_precision()
    tables = []
    for setting in settings():
        tables.append(markdown(setting))
        print(tables[-1], end="\n\n", flush=True)
    if len(sys.argv) > 1:
        with files.whole(Path(sys.argv[1])) as temporary:
            temporary.write_text("\n\n".join(tables) + "\n", encoding="utf-8")
