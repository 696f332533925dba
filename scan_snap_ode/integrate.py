"""integrate(): check the arguments, hand the flow to diffrax, label what comes back."""

from __future__ import annotations

from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree
from jaxtyping import Array, Float

from scan_snap_ode import checks
from scan_snap_ode.flows.base import Flow
from scan_snap_ode.problem import initial
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.trajectory import Status, Trajectory


class SolveError(RuntimeError):
    """A solve that ended before its last time; says where, why and what to try."""


def integrate(
    flow: Flow,
    rates: LearningRates,
    ts: Any,
    *,
    init: Any = "zeros",
    solver: diffrax.AbstractSolver | None = None,
    rtol: Any = 1e-7,
    atol: Any = 1e-9,
    max_steps: int = 100_000,
    progress: bool = False,
    throw: bool = True,
) -> Trajectory:
    """Integrate a flow from t = 0 and record it at `ts`.

    Works inside jit, vmap and grad, with `rates`, `ts`, the classes' probabilities and `init`
    traced. Array-valued rates are solved together and add leading axes to the result.

    Args:
        flow: for example `JointFlow(classes)`.
        rates: learning rates per step, so that t counts steps.
        ts: (T,) times ≥ 0, strictly increasing. The solve starts at 0 whatever `ts[0]` is.
        init: "zeros"; a pair (Y0, Z0) of (M, M) arrays, Y0[token, next] and Z0[query, token]; or
            a Trajectory of the same flow, which is continued: the result holds its records too.
        solver: a diffrax solver; None = Tsit5. Adaptive steps need one with an error estimate.
        rtol, atol: tolerances of the adaptive steps; raised to what the precision can tell
            (single: 1e-6 relative, 1e-8 absolute).
        max_steps: of the solver, for each element of `rates`.
        progress: show a bar of the time reached.
        throw: raise when a solve fails; else its `status` tells, and times not reached are NaN.

    Raises:
        ValueError: for an argument that is not as above.
        SolveError: when a solve fails and `throw` is set.

    >>> import numpy as np, scan_snap_ode as sso
    >>> rates = sso.LearningRates(decoder=1.0, attention=np.array([0.1, 1.0]))
    >>> run = sso.integrate(sso.JointFlow(sso.syn_small()), rates, np.geomspace(1, 100, 5))
    >>> run.attention_logits.shape      # rates, times, query tokens, support tokens
    (2, 5, 2, 30)
    """
    if not isinstance(flow, Flow):
        raise ValueError(
            f"flow must be a flow such as JointFlow(classes), was {type(flow).__name__}."
        )
    checks.kind("rates", rates, LearningRates)
    checks.kind("solver", solver, diffrax.AbstractAdaptiveSolver, type(None))
    checks.positive("rtol", rtol, scalar=True)
    checks.positive("atol", atol, scalar=True)
    max_steps = checks.integer("max_steps", max_steps, 1)
    earlier = init if isinstance(init, Trajectory) else None
    dtype = flow.classes.support_probs.dtype
    rates = jax.tree.map(lambda x: jnp.asarray(x, dtype), rates)
    y0 = _start(flow, init, rates.shape, dtype)
    t0 = jnp.asarray(0.0 if earlier is None else earlier.ts[-1], dtype)
    ts = _check_times(ts, t0, dtype, continuing=earlier is not None)
    tolerances = _tolerances(rtol, atol, dtype)
    solver = diffrax.Tsit5() if solver is None else solver
    # Nothing concrete is being differentiated: the plain loop compiles faster.
    concrete = checks.is_concrete(flow, rates, ts, y0)
    adjoint = diffrax.ForwardMode() if concrete else diffrax.RecursiveCheckpointAdjoint()
    solution = _solve(flow, rates, ts, t0, y0, solver, tolerances, max_steps, adjoint, progress)
    (Y, Z), state, t_end, status, stats = solution
    if throw:
        Y = _raise_failure(Y, status, t_end, ts, max_steps)
    run = Trajectory(
        classes=flow.classes,
        rates=rates,
        ts=ts,
        attention_logits=Z,
        decoder=Y,
        status=status,
        stats=stats,
        state=tuple(jax.tree.leaves(state)),
        about={"method": type(flow).__name__, "solver": type(solver).__name__},
    )
    return run if earlier is None else earlier.followed_by(run)


@eqx.filter_jit
def _solve(flow, rates, ts, t0, y0, solver, tolerances, max_steps, adjoint, progress):
    """Solve for each element of rates; one compiled program for all rates and tolerances."""

    def one(rates, y0):
        flat, unravel = ravel_pytree(y0)  # one array: diffrax's work a step is per leaf

        def field(t, y, rates):
            return ravel_pytree(flow.derivative(t, unravel(y), rates))[0]

        solution = diffrax.diffeqsolve(
            diffrax.ODETerm(field),
            solver,
            t0,
            ts[-1],
            _first_step(t0, ts[-1], rates),
            flat,
            args=rates,
            saveat=diffrax.SaveAt(ts=ts, t1=True),  # the end comes last, wherever it was
            stepsize_controller=diffrax.PIDController(tolerances[0], tolerances[1]),
            max_steps=max_steps,
            adjoint=adjoint,
            throw=False,
            progress_meter=diffrax.TqdmProgressMeter() if progress else diffrax.NoProgressMeter(),
        )
        assert solution.ys is not None
        assert solution.ts is not None
        end = jnp.sum(jnp.isfinite(solution.ts)) - 1
        last, t_end = solution.ys[end], solution.ts[end]
        records = jax.vmap(lambda y: flow.readout(unravel(y)))(solution.ys[:-1])
        reached = (jnp.arange(len(ts)) < end)[:, None, None]
        records = jax.tree.map(lambda x: jnp.where(reached, x, jnp.nan), records)
        finite = jnp.all(jnp.isfinite(last))
        result = solution.result
        status = jnp.where(
            result == diffrax.RESULTS.successful,
            jnp.where(finite, Status.SUCCESS, Status.NOT_FINITE),
            jnp.where(
                result == diffrax.RESULTS.max_steps_reached, Status.MAX_STEPS, Status.NOT_FINITE
            ),
        )
        stats = {
            name: jnp.asarray(solution.stats[f"num_{name}"])
            for name in ("accepted_steps", "rejected_steps")
        }
        return records, unravel(last), t_end, status, stats

    for _ in rates.shape:
        one = jax.vmap(one)
    return one(rates, y0)


def _first_step(t0: Any, t1: Any, rates: LearningRates) -> Any:
    """A small part of the time scale of the rates, or of the time passed where that is longer; the
    error control does the rest. diffrax's own choice would compile the flow twice more."""
    step = jnp.maximum(0.01 / jnp.maximum(rates.decoder, rates.attention), 1e-3 * t0)
    return jnp.minimum(step, t1 - t0)


def _tolerances(rtol: Any, atol: Any, dtype: Any) -> Any:
    """(rtol, atol), at least what the precision can tell."""
    xp = np if checks.is_concrete(rtol, atol) else jnp  # on the host nothing is compiled
    at_least = np.asarray([8, 0.08], dtype) * jnp.finfo(dtype).eps
    return jnp.asarray(xp.maximum(xp.asarray([rtol, atol], dtype), at_least), dtype)


def _start(flow: Flow, init: Any, batch: tuple[int, ...], dtype: Any) -> Any:
    """The initial state, broadcast over the axes of the rates."""
    layout = flow.classes.layout
    if isinstance(init, Trajectory):
        return _continued(flow, init, batch, dtype)
    if isinstance(init, str):
        if init != "zeros":
            raise ValueError(f'init must be "zeros", a Trajectory or (Y0, Z0), was {init!r}.')
        state = initial.zeros(layout, dtype)
    else:
        state = initial.given(layout, init, dtype)
    state = flow.initial(*state)
    return jax.tree.map(lambda x: jnp.broadcast_to(x, batch + x.shape), state) if batch else state


def _continued(flow: Flow, earlier: Trajectory, batch: tuple[int, ...], dtype: Any) -> Any:
    if earlier.about.get("method") != type(flow).__name__ or (
        earlier.classes.layout != flow.classes.layout
    ):
        raise ValueError(
            "init must be a Trajectory of the same flow on the same classes, was of "
            f"{earlier.about.get('method')} on {earlier.classes.num_classes} classes."
        )
    if earlier.rates.shape != batch:
        raise ValueError(
            f"rates must have the shape of those being continued, {earlier.rates.shape}, "
            f"had {batch}."
        )
    if earlier.decoder.dtype != dtype:
        raise ValueError(f"init must be of type {dtype}, as the flow, was {earlier.decoder.dtype}.")
    if checks.is_concrete(earlier.status) and np.any(np.asarray(earlier.status)):
        raise ValueError("init must be a Trajectory that reached its last time, had failed.")
    width = earlier.decoder.shape[-1]
    full = width != len(flow.classes.layout.decoder.tokens)
    structure = jax.tree.structure(flow.initial(*initial.zeros(flow.classes.layout, float, full)))
    return jax.tree.unflatten(structure, [jnp.asarray(x) for x in earlier.state])


def _check_times(ts: Any, t0: Any, dtype: Any, continuing: bool) -> Float[Array, " T"]:
    concrete = checks.is_concrete(ts)
    host = checks.reals("ts", ts).astype(dtype) if concrete else jnp.asarray(ts, dtype)
    if host.ndim != 1 or host.size == 0:
        raise ValueError(f"ts must be a non-empty 1-D array of times, was of shape {host.shape}.")
    if not checks.is_concrete(host, t0):
        return jnp.asarray(host)
    if not np.isfinite(host).all():
        raise ValueError(f"ts must be finite, held {host[~np.isfinite(host)][0]}.")
    if (np.diff(host) <= 0).any():
        i = int(np.argmax(np.diff(host) <= 0))
        raise ValueError(
            f"ts must be strictly increasing, held {host[i]:g} before {host[i + 1]:g}."
        )
    if continuing and host[0] <= t0:
        raise ValueError(
            f"ts must lie after t = {float(t0):g}, where init ends, began at {host[0]:g}."
        )
    if host[0] < 0:
        raise ValueError(f"ts must not be negative, began at {host[0]:g}.")
    return jnp.asarray(host)


def _raise_failure(Y, status, t_end, ts, max_steps: int):
    """SolveError where values are known; the same as a compiled check where they are traced."""
    advice = "Loosen rtol or atol, raise max_steps, or pass a stiff solver (diffrax.Kvaerno5())."
    if not checks.is_concrete(status, t_end):
        return eqx.error_if(Y, jnp.any(status != Status.SUCCESS), f"A solve failed. {advice}")
    failed = np.flatnonzero(np.asarray(status).ravel() != Status.SUCCESS)
    if failed.size:
        first = int(failed[0])
        reason = Status(int(np.asarray(status).ravel()[first]))
        reached = float(np.asarray(t_end).ravel()[first])
        many = f"{failed.size} of {np.size(status)} solves" if np.ndim(status) else "The solve"
        where = f" (the first at flat index {first})" if np.ndim(status) else ""
        raise SolveError(
            f"{many} failed{where}: {reason.sentence(max_steps)}, at t = {reached:.6g} of "
            f"{float(ts[-1]):.6g}. {advice}"
        )
    return Y
