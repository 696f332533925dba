"""What attention of a run looks like, and how far apart two runs are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float
from numpy.typing import NDArray

from scan_snap_ode import checks

if TYPE_CHECKING:
    from scan_snap_ode.trajectory import Trajectory


def distinct_entropy(run: Trajectory) -> NDArray[np.floating]:
    """Entropy in nats of c_i on the distinct tokens of class i, renormalised (paper, Fig. 6).

    Returns:
        (..., T, N); NaN of a class that has no distinct token.
    """
    c, distinct = _attention(run)
    own = np.where(distinct, c, 0)
    with np.errstate(invalid="ignore"):
        own = own / own.sum(-1, keepdims=True)
    return -np.sum(own * np.log(np.where(own == 0, 1, own)), axis=-1)


def common_mass(run: Trajectory) -> NDArray[np.floating]:
    """(..., T, N): the share of c_i on common tokens, those of more than one class."""
    c, distinct = _attention(run)
    return 1 - np.sum(c, axis=-1, where=distinct)


def largest_weight(run: Trajectory) -> NDArray[np.floating]:
    """(..., T, N): the largest entry of c_i."""
    return np.max(_attention(run)[0], axis=-1)


def recall(run: Trajectory, thresholds: Any) -> NDArray[np.floating]:
    """The share of a class's distinct tokens whose attention is above a threshold (paper, Figs. 11
    and 12).

    Args:
        run: with attention c.
        thresholds: (H,) numbers.

    Returns:
        (..., T, N, H); NaN of a class that has no distinct token.

    Raises:
        ValueError: when `thresholds` are no list of numbers.
    """
    thresholds = checks.reals("thresholds", thresholds)
    if thresholds.ndim != 1:
        raise ValueError(f"thresholds must be a list of numbers, was of shape {thresholds.shape}.")
    c, distinct = _attention(run)
    found = [np.sum((c > bound) & distinct, axis=-1) for bound in thresholds]
    with np.errstate(invalid="ignore"):
        return np.stack(found, axis=-1) / np.sum(distinct, axis=-1)[:, None]


def _attention(run: Trajectory) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
    """c (..., T, N, L) in double precision, and which of its entries are of distinct tokens."""
    classes = run.measured_classes
    _, c = run.padded_attention(classes)
    layout = classes.layout
    alone = layout.num_classes_of_token[np.where(layout.mask, layout.ids, 0)] == 1
    return np.asarray(c, np.float64), layout.mask & alone


@jax.jit
def total_variation(
    c: Float[Array, "*axes N L"], other: Float[Array, "*axes N L"], weights: Float[Array, " N"]
) -> Float[Array, "*axes"]:
    """Mean over classes, by weight, of ½ Σ_l |c_i(l) − c'_i(l)|: 0 = equal, 1 = disjoint."""
    return jnp.sum(jnp.abs(c - other), axis=-1) @ weights / 2


@jax.jit
def relative_distance(
    Z: Float[Array, "*axes Q S"], reference: Float[Array, "*axes Q S"]
) -> Float[Array, "*axes"]:
    """|Z − Z_ref| / |Z_ref| in L2 over all entries; 0 where the two agree exactly, NaN where the
    reference alone is zero."""
    gap = jnp.linalg.norm(Z - reference, axis=(-2, -1))
    size = jnp.linalg.norm(reference, axis=(-2, -1))
    ratio = gap / jnp.where(size == 0, jnp.nan, size)
    return jnp.where(gap == 0, 0, ratio)


class Warp(NamedTuple):
    """The best re-timing of one run to another.

    Attributes:
        times: (T,) when the run is nearest to the reference at its T times; rising.
        distance: (T,) relative L2 distance that is left: error of shape, not of clock.
        bound: (T,) where that is an upper bound only, as the run is nearest at the end of its
            records, or before the first of them.
    """

    times: NDArray[np.float64]
    distance: NDArray[np.float64]
    bound: NDArray[np.bool_]


def time_warp(
    ts: NDArray[np.floating],
    Z: NDArray[np.floating],
    reference: NDArray[np.floating],
    refine: int = 8,
) -> Warp:
    """The monotone map of time that brings a run nearest to a reference, in the sum of squared
    relative distances over all T times: dynamic programming over the run's path.

    The path is straight between records (`refine` points on each piece, evenly in the logarithm of
    time), and begins at Z = 0 at t = 0.

    Args:
        ts: (T,) record times, rising, at least one above 0.
        Z: (T, Q, S) the run.
        reference: (T, Q, S) what it is compared with; NaN and zero records count for nothing.
    """
    size = len(ts)
    path, target = (np.asarray(x, np.float64).reshape(size, -1) for x in (Z, reference))
    times = np.asarray(ts, np.float64)
    if times[0] > 0:
        times, path = np.insert(times, 0, 0.0), np.insert(path, 0, 0.0, axis=0)
    path, times = _refined(path, times, refine)
    length = np.sum(target**2, axis=1)
    known = np.isfinite(length) & (length > 0)
    gaps = length[:, None] - 2 * target @ path.T + np.sum(path**2, axis=1)[None]
    with np.errstate(divide="ignore", invalid="ignore"):
        cost = np.where(known[:, None], np.maximum(gaps, 0) / length[:, None], 0)
    cost = np.where(np.isfinite(cost), cost, np.inf)
    chosen = _monotone(cost)
    with np.errstate(divide="ignore", invalid="ignore"):
        # Anew: the expanded square above has lost half of its digits.
        left = np.linalg.norm(path[chosen] - target, axis=1) / np.sqrt(length)
    first = np.asarray(ts, np.float64)[np.asarray(ts) > 0][0]
    outside = (chosen == len(times) - 1) | (times[chosen] < first)
    return Warp(times[chosen], np.where(known, left, np.nan), outside & (left > 0))


def _refined(
    path: NDArray[np.float64], times: NDArray[np.float64], refine: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Points between records; the first piece, from t = 0, evenly in time."""
    part = np.arange(refine) / refine
    points = path[:-1, None] + part[None, :, None] * np.diff(path, axis=0)[:, None]
    early = times[:-1, None] + part[None] * np.diff(times)[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        late = times[:-1, None] * (times[1:] / times[:-1])[:, None] ** part[None]
    between = np.where(times[:-1, None] > 0, late, early)
    flat = points.reshape(-1, path.shape[1])
    return np.vstack([flat, path[-1:]]), np.append(between.ravel(), times[-1])


def _monotone(cost: NDArray[np.float64]) -> NDArray[np.intp]:
    """The non-decreasing choice of a column in each row with the least sum."""
    totals = [cost[0]]
    for row in cost[1:]:
        totals.append(row + np.minimum.accumulate(totals[-1]))
    chosen = np.empty(len(cost), np.intp)
    end = cost.shape[1]
    for k in range(len(cost) - 1, -1, -1):
        chosen[k] = np.argmin(totals[k][:end])
        end = chosen[k] + 1
    return chosen
