"""error_budget(): from SGD to the theory, one assumption a step, and what each step costs."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scan_snap_ode import checks, measures, netcdf
from scan_snap_ode.flows.joint import JointFlow
from scan_snap_ode.integrate import integrate
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.streams.windows import Windows
from scan_snap_ode.training.train import train
from scan_snap_ode.trajectory import Interrupted, Trajectory

if TYPE_CHECKING:
    import matplotlib.figure
    import xarray as xr

SGD, DESCENT, WINDOW_FLOW, CLASS_FLOW = "SGD", "gradient descent", "window flow", "class flow"

# The levels for each kind of source, each with what it assumes on top of the one before.
LADDERS = {
    Windows: {
        SGD: "",
        DESCENT: "no sampling noise",
        WINDOW_FLOW: "infinitely small steps",
        CLASS_FLOW: "infinitely long windows",
    },
    SequenceClasses: {
        SGD: "",
        DESCENT: "no sampling noise, infinitely long windows",
        CLASS_FLOW: "infinitely small steps",
    },
}


@dataclass(frozen=True)
class Step:
    """One rung of the ladder: from a level to a lower one, which assumes more.

    Attributes:
        above, below: the two levels.
        assumes: what the lower one assumes on top.
        attention: (T,) mean total variation of c_i, weighted over classes; in [0, 1].
        logits: (T,) L2 distance of Z, relative to the size of Z at the level above.
    """

    above: str
    below: str
    assumes: str
    attention: NDArray[np.float64]
    logits: NDArray[np.float64]


@dataclass(repr=False)
class ErrorBudget:
    """One training run at every level of description, and the distances between neighbours.

    Attributes:
        source: what was learned.
        momentum: of SGD and gradient descent; the flows replace it by rates η/(1 − μ).
        runs: the Trajectory of each level, from training itself down to the theory.
        seconds: wall time of each level, compilation included.
        unfinished: the Trajectory that ctrl-C ended, if one did.
    """

    source: SequenceClasses | Windows
    momentum: float = 0.0
    runs: dict[str, Trajectory] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    unfinished: Trajectory | None = None
    _known: dict[tuple[str, str], NDArray] = field(default_factory=dict)

    @property
    def classes(self) -> SequenceClasses:
        """The classes on which attention is compared."""
        return self.source.classes() if isinstance(self.source, Windows) else self.source

    @property
    def objective(self) -> SequenceClasses:
        """The classes on which the loss of every level is taken."""
        return self.source.as_classes() if isinstance(self.source, Windows) else self.source

    @property
    def ts(self) -> NDArray[np.float64]:
        """(T,) record times in steps."""
        return np.asarray(next(iter(self.runs.values())).ts, np.float64)

    @property
    def steps(self) -> list[Step]:
        """The distances between neighbouring levels, from the top."""
        levels = list(self.runs)
        return [self.distance(a, b) for a, b in itertools.pairwise(levels)]

    @property
    def shares(self) -> NDArray[np.float64]:
        """(number of steps, T) each step's part of the sum of all steps' `logits`, where known."""
        parts = np.array([step.logits for step in self.steps])
        total = np.nansum(parts, axis=0)
        return parts / np.where(total == 0, 1, total)

    def distance(self, above: str, below: str) -> Step:
        """The distance between two levels, SGD taken as the mean over its seeds.

        Raises:
            ValueError: for a level that is not in `runs`.
        """
        self._check_level(above)
        self._check_level(below)
        ladder = LADDERS[type(self.source)]
        order = list(ladder)
        between = order[order.index(above) + 1 : order.index(below) + 1]
        attention = measures.total_variation(
            self.attention(above).mean(0), self.attention(below).mean(0), self.classes.weights
        )
        logits = measures.relative_distance(self.logits(below).mean(0), self.logits(above).mean(0))
        assumes = ", ".join(ladder[name] for name in between)
        if self.momentum and above in (SGD, DESCENT) and below in (WINDOW_FLOW, CLASS_FLOW):
            assumes += ", momentum as larger rates"
        return Step(above, below, assumes, np.asarray(attention), np.asarray(logits))

    def spread(self, level: str) -> NDArray[np.float64]:
        """(T,) sample standard deviation of Z over a level's seeds, in L2, relative to its mean:
        how far a single run strays. NaN for a single seed."""
        Z = self.logits(level)
        if len(Z) < 2:
            return np.full(len(self.ts), np.nan)
        distance = np.asarray(measures.relative_distance(Z, np.broadcast_to(Z.mean(0), Z.shape)))
        return np.sqrt(np.sum(distance**2, axis=0) / (len(Z) - 1))

    def standard_error(self, level: str) -> NDArray[np.float64]:
        """(T,) of Z's mean over the level's seeds, like `spread`: a distance to this level that is
        no larger may be nothing but the averaging of so few seeds."""
        return self.spread(level) / np.sqrt(len(self.logits(level)))

    def logits(self, level: str) -> NDArray[np.floating]:
        """(seeds, T, Q, S) Z of a level; one seed where the level has none."""
        return self._of_seeds(level, "logits", lambda run: run.attention_logits)

    def attention(self, level: str) -> NDArray[np.floating]:
        """(seeds, T, N, L) c on the padded supports of `classes`."""
        return self._of_seeds(level, "attention", lambda run: run.padded_attention(self.classes)[1])

    def entropy(self, level: str) -> NDArray[np.floating]:
        """(seeds, T) entropy of c in nats, averaged over classes by weight."""
        entropy = self._of_seeds(level, "entropy", lambda run: run.entropy)
        return entropy @ np.asarray(self.classes.weights)

    def loss(self, level: str) -> NDArray[np.floating]:
        """(seeds, T) loss on the whole source in nats."""
        return self._of_seeds(level, "loss", lambda run: run.loss_on(self.objective))

    def _of_seeds(self, level: str, what: str, values: Callable[[Trajectory], Any]) -> NDArray:
        """Computed once: a loss is a pass over all windows for each record."""
        self._check_level(level)
        if (level, what) not in self._known:
            run = self.runs[level]
            host = np.asarray(values(run))
            self._known[level, what] = host if run.decoder.ndim == 4 else host[None]
        return self._known[level, what]

    def _check_level(self, level: str) -> None:
        if level not in self.runs:
            raise ValueError(f"level must be among {list(self.runs)}, was {level!r}.")

    def to_xarray(self) -> xr.Dataset:
        """Distances and shares by step and time; entropy, loss, spread by level and time; and the
        final attention of every class. SGD is the mean over its seeds."""
        import xarray as xr

        steps, levels = self.steps, list(self.runs)
        by_step, by_level = ("step", "time"), ("level", "time")
        means = {
            what: [getattr(self, what)(v).mean(0) for v in levels] for what in ("entropy", "loss")
        }
        columns = self.runs[levels[0]].padded_attention(self.classes)[0]
        ends = [
            self.classes.dense(self.attention(v)[:, -1].mean(0), columns, len(self._tokens))
            for v in levels
        ]
        return xr.Dataset(
            {
                "attention_distance": (
                    by_step,
                    _table([s.attention for s in steps], self.ts),
                    {"units": "1", "long_name": "mean total variation of c, classes by weight"},
                ),
                "logits_distance": (
                    by_step,
                    _table([s.logits for s in steps], self.ts),
                    {"units": "1", "long_name": "L2 distance of Z relative to the level above"},
                ),
                "share": (
                    by_step,
                    _table(self.shares, self.ts),
                    {"units": "1", "long_name": "part of the sum of the steps' logits_distance"},
                ),
                "entropy": (by_level, np.array(means["entropy"]), {"units": "nats"}),
                "loss": (by_level, np.array(means["loss"]), {"units": "nats"}),
                "spread": (
                    by_level,
                    np.array([self.spread(v) for v in levels]),
                    {"units": "1", "long_name": "standard deviation of Z over seeds, relative L2"},
                ),
                "final_attention": (("level", "class", "token"), np.array(ends), {"units": "1"}),
            },
            {
                "time": ("time", self.ts, {"units": "steps"}),
                "level": levels,
                "step": [f"{s.above} → {s.below}" for s in steps],
                "assumes": ("step", [s.assumes for s in steps]),
                "token": self._tokens,
                "token_word": ("token", netcdf.words(self.classes, self._tokens)),
                "class_query": ("class", netcdf.words(self.classes, self.classes.query)),
                "class_next": ("class", netcdf.words(self.classes, self.classes.next_token)),
            },
        )

    @property
    def _tokens(self) -> NDArray[np.int32]:
        return self.classes.support_tokens

    def summary(self) -> dict[str, Any]:
        """The budget at its last time, as plain data."""
        return {
            "step": float(self.ts[-1]),
            "budget": [
                {
                    "above": step.above,
                    "below": step.below,
                    "assumes": step.assumes,
                    "attention_total_variation": float(step.attention[-1]),
                    "logits_relative_distance": float(step.logits[-1]),
                    "share": float(share[-1]),
                }
                for step, share in zip(self.steps, self.shares, strict=True)
            ],
            "levels": [
                {
                    "level": level,
                    "entropy_nats": float(self.entropy(level)[:, -1].mean()),
                    "loss_nats": float(self.loss(level)[:, -1].mean()),
                    "seeds": len(self.logits(level)),
                    "spread": float(self.spread(level)[-1]),
                    "standard_error": float(self.standard_error(level)[-1]),
                    "failed": int(np.count_nonzero(np.asarray(run.status))),
                    "seconds": self.seconds.get(level),
                }
                for level, run in self.runs.items()
            ],
        }

    def plot(self) -> matplotlib.figure.Figure:
        """Attention with words, entropy, loss and the budget, on one sheet."""
        from scan_snap_ode.figures.budget import plot_budget

        return plot_budget(self)

    def __repr__(self) -> str:
        if len(self.runs) < 2:
            return f"ErrorBudget of {', '.join(self.runs) or 'no level yet'}"
        rows = [("from", "to, which assumes", "attention", "logits Z", "share")]
        for step, share in zip(self.steps, self.shares, strict=True):
            rows.append(
                (
                    step.above,
                    f"{step.below}: {step.assumes}",
                    _number(step.attention[-1]),
                    f"{step.logits[-1]:.1%}",
                    f"{share[-1]:.0%}",
                )
            )
        levels = list(self.runs)
        whole = self.distance(levels[0], levels[-1])
        rows.append(
            (
                levels[0],
                f"{levels[-1]}, in all",
                _number(whole.attention[-1]),
                f"{whole.logits[-1]:.1%}",
                "",
            )
        )
        widths = [max(len(row[k]) for row in rows) for k in range(5)]
        lines = [f"Error budget after {self.ts[-1]:,.0f} steps"]
        for row in rows:
            left = "  ".join(cell.ljust(w) for cell, w in zip(row[:2], widths[:2], strict=True))
            right = "  ".join(cell.rjust(w) for cell, w in zip(row[2:], widths[2:], strict=True))
            lines.append(f"  {left}  {right}".rstrip())
        lines.append(
            "  attention: mean total variation of c, 0 to 1; logits Z: L2 distance relative to the "
            "level\n  on the left; share: of the sum of these"
        )
        if SGD in self.runs and len(self.logits(SGD)) > 1:
            count, spread = len(self.logits(SGD)), self.spread(SGD)[-1]
            lines.append(
                f"  SGD is the mean of {count} seeds: Z of one run strays {spread:.1%} from it, "
                f"the\n  mean's standard error is {self.standard_error(SGD)[-1]:.1%}"
            )
        return "\n".join(lines)


def error_budget(
    source: SequenceClasses | Windows,
    rates: LearningRates,
    ts: Any,
    *,
    levels: Sequence[str] | None = None,
    num_seeds: int = 5,
    seed: int = 0,
    batch_size: int = 128,
    context_length: int | None = None,
    momentum: float = 0.0,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    progress: bool = False,
    on_level: Callable[[str, Trajectory], None] | None = None,
) -> ErrorBudget:
    """Train by SGD, then drop one piece of reality after another, down to the class flow.

    Of windows: SGD → gradient descent on all windows → window flow (the gradient flow of the same
    loss) → class flow (the long-sequence limit). Of classes: SGD on fresh windows → gradient
    descent on the classes → class flow.

    Args:
        source: windows of a text, or classes.
        rates: scalar rates, per step. With momentum the flows take η/(1 − μ).
        ts: (T,) rising whole numbers of steps; 0 = before the first.
        levels: which to run, by name; None = all. At least two.
        num_seeds, seed, batch_size, context_length, momentum: of SGD, as in `train`.
        rtol, atol: of the flows, as in `integrate`.
        progress: show bars.
        on_level: called with each level's name and Trajectory as it is done.

    Raises:
        ValueError: for an argument that is not as above.
        Interrupted: on ctrl-C, with the levels so far.

    >>> import scan_snap_ode as sso
    >>> budget = sso.error_budget(sso.syn_small(), sso.LearningRates(0.1, 0.1), [0, 10, 100],
    ...                           num_seeds=2)
    >>> [step.below for step in budget.steps]
    ['gradient descent', 'class flow']
    """
    checks.kind("source", source, SequenceClasses, Windows)
    checks.kind("rates", rates, LearningRates)
    if rates.shape:
        raise ValueError(f"rates must be two numbers for a budget, had the shape {rates.shape}.")
    ts = _check_steps(ts)
    levels = _check_levels(levels, list(LADDERS[type(source)]))
    checks.integer("num_seeds", num_seeds, 1)
    checks.within("momentum", momentum, 0, 1)
    checks.positive("rtol", rtol, scalar=True)  # now, not after hours of SGD
    checks.positive("atol", atol, scalar=True)
    if on_level is not None and not callable(on_level):
        raise ValueError(f"on_level must be a function or None, was {on_level!r}.")
    budget = ErrorBudget(source, momentum)
    options: dict[str, Any] = {"momentum": momentum, "record_at": ts, "progress": progress}

    def run(level: str) -> Trajectory:
        if level == SGD:
            return train(
                source,
                rates,
                int(ts[-1]),
                batch_size=batch_size,
                context_length=context_length,
                num_seeds=num_seeds,
                seed=seed,
                **options,
            )
        if level == DESCENT:
            return train(source, rates, int(ts[-1]), batch_size=None, **options)
        classes = budget.objective if level == WINDOW_FLOW else budget.classes
        return integrate(
            JointFlow(classes),
            rates.with_momentum(momentum),
            ts,
            rtol=rtol,
            atol=atol,
            progress=progress,
        )

    for level in levels:
        began = time.monotonic()
        try:
            budget.runs[level] = run(level)
        except KeyboardInterrupt as stopped:
            budget.unfinished = stopped.partial if isinstance(stopped, Interrupted) else None
            raise Interrupted(budget) from None
        budget.seconds[level] = time.monotonic() - began
        if on_level is not None:
            on_level(level, budget.runs[level])
    return budget


def _check_steps(ts: Any) -> NDArray[np.int64]:
    steps = checks.reals("ts", ts)
    whole = steps.ndim == 1 and steps.size and np.isfinite(steps).all()
    if not whole or (steps != np.round(steps)).any():
        raise ValueError(f"ts must be a non-empty list of whole numbers of steps, was {ts!r}.")
    if steps[0] < 0 or (np.diff(steps) <= 0).any() or steps[-1] < 1:
        raise ValueError(
            f"ts must be strictly increasing, from 0 or more to 1 or more, was {ts!r}."
        )
    return steps.astype(np.int64)


def _check_levels(levels: Sequence[str] | None, known: list[str]) -> list[str]:
    if levels is None:
        return known
    asked = list(levels) if isinstance(levels, Iterable) else []
    chosen = [level for level in known if level in asked]
    if len(chosen) < 2 or not all(level in known for level in asked):
        raise ValueError(f"levels must be two or more of {known}, was {levels!r}.")
    return chosen


def _table(rows: Any, ts: NDArray) -> NDArray:
    return np.array(list(rows)).reshape(-1, len(ts))


def _number(value: float) -> str:
    return f"{value:.3f}" if value == 0 or value >= 0.001 else f"{value:.0e}"
