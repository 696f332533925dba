"""When attention snaps: the measures of a run, and the event that stops a solve there."""

from __future__ import annotations

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from scan_snap_ode import checks
from scan_snap_ode.problem.classes import SequenceClasses, positions
from scan_snap_ode.problem.initial import State
from scan_snap_ode.theory import attention
from scan_snap_ode.trajectory import Trajectory


class SnapTimes(NamedTuple):
    """When a run's attention moved fastest, and from when on it hardly moved; in steps.

    Attributes:
        fastest: (...) the time at which c moved fastest per step, between two records; NaN where
            it never moved.
        settled: (...) the first record behind it after which c moves less than the chosen fraction
            per decade of t between any two records; NaN where the run ends before.
    """

    fastest: NDArray[np.float64]
    settled: NDArray[np.float64]


def snap_times(run: Trajectory, fraction: float = 0.02) -> SnapTimes:
    """Snapping, measured on the records of any run; beside the prediction of `transition_times`.

    A movement is the total variation ½ Σ_l |Δc_i(l)|, averaged over classes by weight. Times are as
    fine as the records are: take about ten a decade. In SGD a batch's noise moves attention too.

    Args:
        run: with at least three recorded times.
        fraction: of all attention, per decade of t, below which c counts as frozen; in (0, 1).

    Raises:
        ValueError: for an argument that is not as above.

    >>> import numpy as np, scan_snap_ode as sso
    >>> flow = sso.JointFlow(sso.syn_small())
    >>> run = sso.integrate(flow, sso.LearningRates(1.0, 1.0), np.geomspace(0.1, 1e4, 60))
    >>> times = sso.snap_times(run)
    >>> bool(10 < times.fastest < times.settled < 1e4)
    True
    """
    checks.kind("run", run, Trajectory)
    checks.within("fraction", fraction, 0, 1, open_low=True)
    if len(run.ts) < 3:
        raise ValueError(f"run must have at least 3 recorded times, had {len(run.ts)}.")
    classes = run.measured_classes
    c = np.asarray(run.padded_attention(classes)[1], np.float64)
    moved = np.abs(np.diff(c, axis=-3)).sum(-1) @ np.asarray(classes.weights, np.float64) / 2
    ts = np.asarray(run.ts, np.float64)
    speed = moved / np.diff(ts)
    k = np.argmax(np.where(np.isfinite(speed), speed, -1), axis=-1)
    moved_at_all = np.nan_to_num(speed).any(-1)
    fastest = np.where(ts[k] > 0, np.sqrt(ts[k] * ts[k + 1]), ts[k + 1] / 2)
    fastest = np.where(moved_at_all, fastest, np.nan)
    decades = np.diff(np.log10(ts, where=ts > 0, out=np.full(len(ts), -np.inf)))
    decades = np.where(np.isfinite(decades), decades, 1)  # from t = 0 on: all of it counts
    moves = ~(moved / decades < fraction)  # a record that is missing has not settled
    last = moves.shape[-1] - np.argmax(moves[..., ::-1], axis=-1)  # behind the last movement
    last = np.maximum(np.where(moves.any(-1), last, 0), np.where(moved_at_all, k + 1, 0))
    settled = np.where(last < len(ts) - 1, ts[np.minimum(last, len(ts) - 1)], np.nan)
    return SnapTimes(fastest, settled)


class Snap(eqx.Module):
    """An event for `integrate`: stop when attention has snapped, that is when c, having moved
    faster, comes to move less than `fraction` per decade of t (total variation, classes by weight).

    Args:
        fraction: of all attention, per decade of t; in (0, 1).

    Raises:
        ValueError: when `fraction` is outside (0, 1).

    >>> import scan_snap_ode as sso
    >>> flow, rates = sso.JointFlow(sso.syn_small()), sso.LearningRates(1.0, 1.0)
    >>> run = sso.integrate(flow, rates, [1.0, 1e6], event=sso.Snap(0.02))
    >>> run.status == sso.Status.EVENT, bool(100 < run.stats["end_time"] < 1e6)
    (Array(True, dtype=bool), True)
    """

    fraction: Float[Array, ""]

    def __init__(self, fraction: Any = 0.02):
        checks.within("fraction", fraction, 0, 1, open_low=True)
        self.fraction = jnp.asarray(fraction, float)

    def __call__(
        self, classes: SequenceClasses, t: Any, model: State, velocity: State
    ) -> Float[Array, ""]:
        """Movement of c per decade of t, less `fraction`."""
        measured = classes if classes.pooled is None else classes.pooled
        Z, dZ = model[1], velocity[1]
        rows = jnp.asarray(positions(classes.query_tokens, measured.query))
        ids = np.where(measured.layout.mask, measured.ids, classes.support_tokens[0])
        columns = jnp.asarray(positions(classes.support_tokens, ids))
        probs = jnp.where(measured.layout.mask, measured.support_probs, 0).astype(Z.dtype)
        c = attention.attention(probs, attention.logits_at(Z, rows, columns))
        slope = attention.logits_at(dZ, rows, columns)
        moving = c * (slope - jnp.sum(c * slope, axis=1, keepdims=True))
        speed = measured.weights.astype(Z.dtype) @ jnp.sum(jnp.abs(moving), axis=1) / 2
        return jnp.log(10.0).astype(Z.dtype) * t * speed - self.fraction.astype(Z.dtype)
