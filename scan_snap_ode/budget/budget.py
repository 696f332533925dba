"""The error budget: the runs of all levels, and the distances between them."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scan_snap_ode import measures, netcdf
from scan_snap_ode.budget import levels as lv
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.streams.windows import Windows
from scan_snap_ode.trajectory import Trajectory

if TYPE_CHECKING:
    import matplotlib.figure
    import xarray as xr


@dataclass(frozen=True)
class Step:
    """One rung of the ladder: from a level to a lower one, which assumes more.

    Attributes:
        above, below: the two levels.
        assumes: what the lower one assumes on top.
        attention: (T,) mean total variation of c_i, weighted over classes; in [0, 1].
        logits: (T,) L2 distance of Z, relative to the size of Z at the level above.
        shape: (T,) what is left of `logits` when the lower level is re-timed as well as its records
            allow: its error of shape; the rest is one of clock.
        shape_is_bound: (T,) where `shape` is an upper bound only: the lower level is nearest at its
            last record, or before its first; a level that lags needs later records.
        times: (T,) the lower level's own time at which it is where the upper one is.
        valid_from: the first record at which the upper level's Z has moved and `logits` is within
            the budget's tolerance; NaN where none is. SGD's first step from zero moves only Y.
        valid_until: the first record after that at which it is not; inf where there is none. Two
            levels may also be near in passing, as one overtakes the other.
    """

    above: str
    below: str
    assumes: str
    attention: NDArray[np.float64]
    logits: NDArray[np.float64]
    shape: NDArray[np.float64]
    shape_is_bound: NDArray[np.bool_]
    times: NDArray[np.float64]
    valid_from: float
    valid_until: float


class Bias(NamedTuple):
    """(T,) how far the expectation of SGD is from another level, relative L2 distance of Z: the
    distance of the mean over seeds, less what so few seeds add to it; and the interval in which it
    lies, two standard errors of that mean to each side."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(repr=False)
class ErrorBudget:
    """One training run at every level of description, and the distances between neighbours.

    Attributes:
        source: what was learned.
        momentum: of SGD, gradient descent and the optimizer flow; the other flows replace it by
            rates η/(1 − μ).
        tolerance: of Z, relative, up to which a level counts as valid.
        runs: the Trajectory of each level, from training itself down to the theory.
        left_out: levels that do not apply to the source, each with the reason.
        solver_error: (T,) of each flow's Z, relative: its distance to a sharper solve.
        seconds: wall time of each level, compilation included.
        unfinished: the Trajectory that ctrl-C ended, if one did.
    """

    source: SequenceClasses | Windows
    momentum: float = 0.0
    tolerance: float = 0.1
    runs: dict[str, Trajectory] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    solver_error: dict[str, NDArray[np.floating]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    unfinished: Trajectory | None = None
    _known: dict[tuple[str, str], NDArray] = field(default_factory=dict)
    _steps: dict[tuple[str, str], Step] = field(default_factory=dict)

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
    def ladder(self) -> lv.Ladder:
        """What each level assumes on top of another."""
        return lv.LADDERS[type(self.source)]

    @property
    def steps(self) -> list[Step]:
        """The distances between neighbouring levels of the main ladder, from the top."""
        main = [level for level in self.runs if level in self.ladder.main]
        return [self.distance(a, b) for a, b in itertools.pairwise(main)]

    @property
    def branches(self) -> list[Step]:
        """The same for levels beside the main ladder."""
        return [
            self.distance(a, b)
            for a, b, _ in self.ladder.branches
            if a in self.runs and b in self.runs
        ]

    @property
    def shares(self) -> NDArray[np.float64]:
        """(number of steps, T) each of `steps`' part of the sum of their distances |ΔZ|, which are
        not relative here: each level has another size."""
        pairs = [(self.logits(s.above).mean(0), self.logits(s.below).mean(0)) for s in self.steps]
        parts = np.array([np.linalg.norm(a - b, axis=(1, 2)) for a, b in pairs])
        total = np.nansum(parts, axis=0)
        return parts / np.where(total == 0, 1, total)

    def distance(self, above: str, below: str) -> Step:
        """The distance between two levels, SGD taken as the mean over its seeds.

        Raises:
            ValueError: for a level that is not in `runs`, or two that no assumption leads between.
        """
        self._check_level(above)
        self._check_level(below)
        if (above, below) not in self._steps:
            self._steps[above, below] = self._distance(above, below)
        return self._steps[above, below]

    def _distance(self, above: str, below: str) -> Step:
        assumes = self.ladder.assumes(above, below)
        if not assumes:
            raise ValueError(f"below must be a level that assumes more than {above}, was {below}.")
        if self.momentum and above in lv.WITH_MOMENTUM and below not in lv.WITH_MOMENTUM:
            assumes = [*assumes, "momentum as larger rates"]
        attention = measures.total_variation(
            self.attention(above).mean(0), self.attention(below).mean(0), self.classes.weights
        )
        Z, reference = self.logits(below).mean(0), self.logits(above).mean(0)
        logits = np.asarray(measures.relative_distance(Z, reference))
        warp = measures.time_warp(self.ts, Z, reference)
        return Step(
            above,
            below,
            ", ".join(assumes),
            np.asarray(attention),
            logits,
            warp.distance,
            warp.bound,
            warp.times,
            *self._validity(np.where(reference.any(axis=(1, 2)), logits, np.nan)),
        )

    def _validity(self, distance: NDArray[np.floating]) -> tuple[float, float]:
        """The first record within tolerance, and the first after it that is beyond."""
        near = distance <= self.tolerance
        within = np.flatnonzero(near)
        if not within.size:
            return np.nan, np.nan
        beyond = np.flatnonzero(~near[within[0] :])
        until = self.ts[within[0] + beyond[0]] if beyond.size else np.inf
        return float(self.ts[within[0]]), float(until)

    def bias(self, below: str) -> Bias:
        """How far SGD is from a level in expectation, apart from the noise of its few seeds.

        Raises:
            ValueError: for a level that is not in `runs`, or where SGD is not.
        """
        distance, error = self.distance(lv.SGD, below).logits, self.standard_error(lv.SGD)
        value = np.sqrt(np.maximum(distance**2 - error**2, 0))
        return Bias(value, np.maximum(distance - 2 * error, 0), distance + 2 * error)

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
            self._known[level, what] = host if run.axes else host[None]
        return self._known[level, what]

    def _check_level(self, level: str) -> None:
        if level not in self.runs:
            raise ValueError(f"level must be among {list(self.runs)}, was {level!r}.")

    def to_xarray(self) -> xr.Dataset:
        """Distances and shares by step and time; entropy, loss, spread by level and time; and the
        final attention of every class. SGD is the mean over its seeds."""
        import xarray as xr

        steps, levels = [*self.steps, *self.branches], list(self.runs)
        no_share = np.full((len(self.branches), len(self.ts)), np.nan)
        never = np.full(len(self.ts), np.nan)
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
                "shape_distance": (
                    by_step,
                    _table([s.shape for s in steps], self.ts),
                    {"units": "1", "long_name": "what is left of it after the best re-timing"},
                ),
                "shape_is_bound": (
                    by_step,
                    _table([s.shape_is_bound for s in steps], self.ts),
                    {"long_name": "shape_distance is an upper bound only"},
                ),
                "nearest_time": (
                    by_step,
                    _table([s.times for s in steps], self.ts),
                    {"units": "steps", "long_name": "time of the level below where it is nearest"},
                ),
                "valid_from": ("step", [s.valid_from for s in steps], {"units": "steps"}),
                "valid_until": ("step", [s.valid_until for s in steps], {"units": "steps"}),
                "share": (
                    by_step,
                    np.concatenate([_table(self.shares, self.ts), no_share]),
                    {
                        "units": "1",
                        "long_name": "part of the sum of the steps' distances in Z, not relative",
                    },
                ),
                "entropy": (by_level, np.array(means["entropy"]), {"units": "nats"}),
                "loss": (by_level, np.array(means["loss"]), {"units": "nats"}),
                "spread": (
                    by_level,
                    np.array([self.spread(v) for v in levels]),
                    {"units": "1", "long_name": "standard deviation of Z over seeds, relative L2"},
                ),
                "solver_error": (
                    by_level,
                    np.array([self.solver_error.get(v, never) for v in levels]),
                    {"units": "1", "long_name": "of Z, relative L2, against sharper tolerances"},
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
            {
                "tolerance": self.tolerance,
                "left_out": [f"{level}: {why}" for level, why in self.left_out.items()] or "",
            },
        )

    @property
    def _tokens(self) -> NDArray[np.int32]:
        return self.classes.support_tokens

    def summary(self) -> dict[str, Any]:
        """The budget at its last time, as plain data."""

        def of(step: Step) -> dict[str, Any]:
            return {
                "above": step.above,
                "below": step.below,
                "assumes": step.assumes,
                "attention_total_variation": float(step.attention[-1]),
                "logits_relative_distance": float(step.logits[-1]),
                "shape_relative_distance": float(step.shape[-1]),
                "shape_is_bound": bool(step.shape_is_bound[-1]),
                "valid_from": step.valid_from,
                "valid_until": step.valid_until,
            }

        return {
            "step": float(self.ts[-1]),
            "tolerance": self.tolerance,
            "budget": [
                of(step) | {"share": float(share[-1])}
                for step, share in zip(self.steps, self.shares, strict=True)
            ],
            "branches": [of(step) for step in self.branches],
            "left_out": self.left_out,
            "levels": [self._summary_of(level) for level in self.runs],
        }

    def _summary_of(self, level: str) -> dict[str, Any]:
        off = self.solver_error.get(level)
        return {
            "level": level,
            "entropy_nats": float(self.entropy(level)[:, -1].mean()),
            "loss_nats": float(self.loss(level)[:, -1].mean()),
            "seeds": len(self.logits(level)),
            "spread": float(self.spread(level)[-1]),
            "standard_error": float(self.standard_error(level)[-1]),
            "solver_error": None if off is None else float(off[-1]),
            "failed": int(np.sum(self.runs[level].failed)),
            "seconds": self.seconds.get(level),
        }

    def plot(self) -> matplotlib.figure.Figure:
        """Attention with words, entropy, loss and the budget, on one sheet."""
        from scan_snap_ode.figures.budget import plot_budget

        return plot_budget(self)

    def __repr__(self) -> str:
        from scan_snap_ode.budget.table import table

        return table(self)


def _table(rows: Any, ts: NDArray) -> NDArray:
    return np.array(list(rows)).reshape(-1, len(ts))
