"""The diffrax calls behind integrate(): one solve for each pair of rates, or one in intrinsic time
for all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import optimistix as optx
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from scan_snap_ode.flows.base import Flow, IntrinsicFlow
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.trajectory import Status

# Steps that one solve in intrinsic time can keep; attention freezes as ln ln t, so few are made.
KNOTS = 2048


class Solution(NamedTuple):
    """Records behind the axes of the rates, and how each solve ended."""

    Y: Array | None
    Z: Array
    state: Any
    end_time: Array
    status: Array
    stats: dict[str, Array]


class Options(NamedTuple):
    """What diffrax is told."""

    solver: diffrax.AbstractSolver
    tolerances: Float[Array, " 2"]
    max_steps: int
    adjoint: diffrax.AbstractAdjoint
    progress: bool
    event: Any

    def run(self, field: Any, t0: Any, t1: Any, first_step: Any, y0: Any, **more: Any) -> Any:
        meter = diffrax.TqdmProgressMeter() if self.progress else diffrax.NoProgressMeter()
        return diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            self.solver,
            t0,
            t1,
            first_step,
            y0,
            stepsize_controller=diffrax.PIDController(self.tolerances[0], self.tolerances[1]),
            max_steps=self.max_steps,
            adjoint=self.adjoint,
            throw=False,
            progress_meter=meter,
            **more,
        )


@eqx.filter_jit
def solve_each(
    flow: Flow, rates: LearningRates, ts: Any, t0: Any, start: Any, fresh: bool, options: Options
) -> Solution:
    """A solve for each element of rates; one compiled program for all rates and tolerances.

    `start` is one pair (Y, Z) for all where `fresh`, else a state for each.
    """

    def one(rates: LearningRates, start: Any) -> Solution:
        y0 = flow.initial(start[0], start[1], rates) if fresh else start
        flat, unravel = ravel_pytree(y0)  # one array: diffrax's work a step is per leaf

        def field(t, y, rates):
            return ravel_pytree(flow.derivative(t, unravel(y), rates))[0]

        solution = options.run(
            field,
            t0,
            ts[-1],
            _first_step(t0, ts[-1], rates),
            flat,
            args=rates,
            saveat=diffrax.SaveAt(ts=ts, t1=True),  # the end comes last, wherever it was
            event=_event(options.event, flow, unravel, options.tolerances),
        )
        end = jnp.sum(jnp.isfinite(solution.ts)) - 1
        last, t_end = solution.ys[end], solution.ts[end]
        Y, Z = jax.vmap(lambda t, y: flow.readout(t, unravel(y), rates))(ts, solution.ys[:-1])
        reached = (jnp.arange(len(ts)) < end)[:, None, None]
        Y, Z = (jnp.where(reached, x, jnp.nan) for x in (Y, Z))
        status = _status(solution.result, jnp.all(jnp.isfinite(last)))
        return Solution(Y, Z, unravel(last), t_end, status, _stats(solution))

    for _ in rates.shape:
        one = jax.vmap(one, in_axes=(0, None if fresh else 0))
    return one(rates, start)


@eqx.filter_jit
def solve_once(
    flow: IntrinsicFlow, rates: LearningRates, ts: Any, start: State, options: Options
) -> Solution:
    """One solve in the intrinsic time Γ; every pair of rates reads it by its own clock.

    Between two steps of the solver the state is the polynomial of degree 5 that has its values,
    first and second derivatives there.
    """
    Gamma = flow.intrinsic_time(ts, rates)
    furthest = jax.lax.stop_gradient(jnp.max(Gamma))
    y0 = flow.initial(start[0], start[1], rates)
    flat, unravel = ravel_pytree(y0)

    def velocity(y: Array) -> Array:
        return ravel_pytree(flow.intrinsic_derivative(unravel(y)))[0]

    def knot(_, y: Array, __) -> Array:
        v = velocity(y)
        return jnp.stack([y, *jax.jvp(velocity, (y,), (v,))])

    solution = options.run(
        lambda _, y, __: velocity(y),
        jnp.zeros_like(furthest),
        furthest,
        jnp.minimum(0.01, furthest),
        flat,
        saveat=diffrax.SaveAt(t0=True, steps=True, fn=knot),
    )
    knots, values = solution.ts, solution.ys
    last = jnp.sum(jnp.isfinite(knots), dtype=jnp.int32) - 1
    reached = Gamma <= knots[last]
    states = _hermite(knots, values, last, Gamma)
    states = jnp.where(reached[..., None], states, jnp.nan)
    result = jnp.broadcast_to(solution.result == diffrax.RESULTS.successful, rates.shape)
    finite = jnp.all(jnp.isfinite(values[last]))
    failed = _status(solution.result, finite)
    status = jnp.where(finite & (result | reached[..., -1]), Status.SUCCESS, failed)
    Z = states.reshape(*states.shape[:-1], *y0.shape)
    stats = jax.tree.map(lambda x: jnp.broadcast_to(x, rates.shape), _stats(solution))
    end_time = jnp.max(jnp.where(reached, ts, 0), axis=-1)
    return Solution(None, Z, Z[..., -1, :, :], end_time, status, stats)


def _hermite(
    knots: Float[Array, " n"], values: Float[Array, "n 3 d"], last: Any, x: Float[Array, "*axes"]
) -> Float[Array, "*axes d"]:
    """The piecewise polynomial of degree 5 through values and two derivatives at knots 0 … last."""
    left = jnp.clip(jnp.searchsorted(knots, x, side="right") - 1, 0, jnp.maximum(last - 1, 0))
    right = jnp.minimum(left + 1, last)
    width = knots[right] - knots[left]
    s = jnp.where(width > 0, (x - knots[left]) / jnp.where(width > 0, width, 1), 0)
    r, h = 1 - s, width
    near, far = r**3 * (1 + 3 * s + 6 * s**2), s**3 * (1 + 3 * r + 6 * r**2)
    weights = (
        (near, h * r**3 * s * (1 + 3 * s), h**2 * r**3 * s**2 / 2),
        (far, -h * s**3 * r * (1 + 3 * r), h**2 * s**3 * r**2 / 2),
    )
    sums = [
        w[..., None] * values[at, k]
        for at, ws in zip((left, right), weights, strict=True)
        for k, w in enumerate(ws)
    ]
    return sum(sums[1:], sums[0])


def _status(result: Any, finite: Any) -> Array:
    results = diffrax.RESULTS
    ended = jnp.where(finite, Status.SUCCESS, Status.NOT_FINITE)
    ended = jnp.where(result == results.event_occurred, Status.EVENT, ended)
    good = (result == results.successful) | (result == results.event_occurred)
    out_of_steps = result == results.max_steps_reached
    return jnp.where(good, ended, jnp.where(out_of_steps, Status.MAX_STEPS, Status.NOT_FINITE))


def _stats(solution: diffrax.Solution) -> dict[str, Array]:
    names = ("accepted_steps", "rejected_steps")
    return {name: jnp.asarray(solution.stats[f"num_{name}"]) for name in names}


def _event(event: Any, flow: Flow, unravel: Any, tolerances: Any) -> diffrax.Event | None:
    """Ends the solve where `event` falls through zero."""
    if event is None:
        return None

    def condition(t, y, args, **_):
        state, rates = unravel(y), args
        velocity = flow.derivative(t, state, rates)
        t = jnp.asarray(t, y.dtype)
        model, moving = jax.jvp(
            lambda t, s: flow.readout(t, s, rates), (t, state), (jnp.ones_like(t), velocity)
        )
        value = event(flow.classes, t, model, moving)
        if (
            value is None
            or jnp.shape(value)
            or not jnp.issubdtype(jnp.result_type(value), jnp.floating)
        ):
            raise ValueError(
                "event must return one real number, which falls through zero where the run ends, "
                f"returned {value!r:.200}."
            )
        return value

    root_finder = optx.Newton(rtol=tolerances[0], atol=tolerances[1])
    return diffrax.Event(condition, root_finder, direction=False)


def _first_step(t0: Any, t1: Any, rates: LearningRates) -> Any:
    """A small part of the time scale of the rates, or of the time passed where that is longer; the
    error control does the rest. diffrax's own choice would compile the flow twice more."""
    step = jnp.maximum(0.01 / jnp.maximum(rates.decoder, rates.attention), 1e-3 * t0)
    return jnp.minimum(step, t1 - t0)
