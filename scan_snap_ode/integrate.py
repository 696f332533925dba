"""integrate(): check the arguments, hand the flow to diffrax, label what comes back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import diffrax
import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from scan_snap_ode import checks
from scan_snap_ode.flows.base import Flow, IntrinsicFlow, check_start, method
from scan_snap_ode.problem import initial
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.solve import KNOTS, Options, Solution, solve_each, solve_once
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
    event: Callable[..., Any] | None = None,
    progress: bool = False,
    throw: bool = True,
) -> Trajectory:
    """Integrate a flow from t = 0 and record it at `ts`.

    Works inside jit, vmap and grad, with `rates`, `ts`, the classes' probabilities and `init`
    traced. Array-valued rates are solved together and add leading axes to the result; flows with
    an intrinsic time (`SlowAttentionFlow`, `CommonTokenFlow`) are solved once for all of them.

    Args:
        flow: for example `JointFlow(classes)`.
        rates: learning rates per step, so that t counts steps.
        ts: (T,) times ≥ 0, strictly increasing. The solve starts at 0 whatever `ts[0]` is.
        init: "zeros"; a pair (Y0, Z0) of (M, M) arrays, Y0[token, next] and Z0[query, token]; or
            a Trajectory of the same flow, which is continued: the result holds its records too.
        solver: a diffrax solver; None = Tsit5. Adaptive steps need one with an error estimate.
        rtol, atol: tolerances of the adaptive steps; raised to what the precision can tell
            (single: 1e-6 relative, 1e-8 absolute).
        max_steps: of the solver, for each element of `rates`; at most 2,048 in intrinsic time.
        event: ends a run early, such as `Snap()`: a function of (classes, t, (Y, Z), (dY, dZ)), the
            last pair being derivatives in t, that ends the run where it falls through zero. The
            run's `status` says so, `stats["end_time"]` when; later records are NaN.
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
    if event is not None and (not callable(event) or isinstance(event, type)):
        raise ValueError(f"event must be such as Snap(), or None, was {event!r}.")
    earlier = init if isinstance(init, Trajectory) else None
    dtype = flow.classes.support_probs.dtype
    rates = jax.tree.map(lambda x: jnp.asarray(x, dtype), rates)
    start = _start(flow, init, rates, dtype)
    t0 = jnp.asarray(0.0 if earlier is None else earlier.ts[-1], dtype)
    ts = _check_times(ts, t0, dtype, continuing=earlier is not None)
    # Nothing concrete is being differentiated: the plain loop compiles faster.
    concrete = checks.is_concrete(flow, rates, ts, start)
    options = Options(
        solver=diffrax.Tsit5() if solver is None else solver,
        tolerances=_tolerances(rtol, atol, dtype),
        max_steps=max_steps,
        adjoint=diffrax.ForwardMode() if concrete else diffrax.RecursiveCheckpointAdjoint(),
        progress=progress,
        event=event,
    )
    fresh = earlier is None
    once = fresh and event is None  # a continued run of many rates is in as many states
    if once and isinstance(flow, IntrinsicFlow) and flow.has_intrinsic_time:
        max_steps = min(max_steps, KNOTS)
        options = options._replace(max_steps=max_steps)
        solution = solve_once(flow, rates, ts, start, options)
    else:
        solution = solve_each(flow, rates, ts, t0, start, fresh, options)
    if throw:
        solution = _raise_failure(solution, ts, max_steps)
    run = Trajectory(
        classes=flow.classes,
        rates=rates,
        ts=ts,
        attention_logits=solution.Z,
        decoder=solution.Y,
        flow=flow if solution.Y is None else None,
        status=solution.status,
        stats=solution.stats | {"end_time": solution.end_time},
        state=tuple(jax.tree.leaves(solution.state)),
        about={"method": method(flow), "solver": type(options.solver).__name__},
    )
    return run if earlier is None else earlier.followed_by(run)


def _tolerances(rtol: Any, atol: Any, dtype: Any) -> Any:
    """(rtol, atol), at least what the precision can tell."""
    xp = np if checks.is_concrete(rtol, atol) else jnp  # on the host nothing is compiled
    at_least = np.asarray([8, 0.08], dtype) * jnp.finfo(dtype).eps
    return jnp.asarray(xp.maximum(xp.asarray([rtol, atol], dtype), at_least), dtype)


def _start(flow: Flow, init: Any, rates: LearningRates, dtype: Any) -> Any:
    """(Y, Z) to start from, or the states of a Trajectory that is continued."""
    if isinstance(init, Trajectory):
        return _continued(flow, init, rates, dtype)
    layout = flow.classes.layout
    if isinstance(init, str):
        if init != "zeros":
            raise ValueError(f'init must be "zeros", a Trajectory or (Y0, Z0), was {init!r}.')
        return initial.zeros(layout, dtype)
    return check_start(flow, initial.given(layout, init, dtype))


def _continued(flow: Flow, earlier: Trajectory, rates: LearningRates, dtype: Any) -> Any:
    if (kept := earlier.attention_logits.dtype) != dtype:
        raise ValueError(f"init must be of type {dtype}, as the flow, was {kept}.")
    was = earlier.about.get("method")
    same = _same_classes(earlier.classes, flow.classes)
    if was != method(flow) or not same:
        which = "the same" if same else "other"
        raise ValueError(
            f"init must be a Trajectory of {method(flow)} on the same classes, was of {was} on "
            f"{which} classes."
        )
    batch = rates.shape
    if earlier.rates.shape != batch:
        raise ValueError(
            f"rates must have the shape of those being continued, {earlier.rates.shape}, "
            f"had {batch}."
        )
    clocks = [jax.tree.leaves(x) for x in (earlier.rates, rates)]
    by_clock = getattr(flow, "decoder_by_clock", False) and checks.is_concrete(clocks)
    if by_clock and not all(map(np.array_equal, *clocks)):
        raise ValueError(
            f"rates must be those of init for {method(flow)}, whose decoder is a clock that began "
            f"at t = 0; were {rates}, of init {earlier.rates}."
        )
    if checks.is_concrete(earlier.status) and np.any(np.asarray(earlier.status)):
        how = "had failed" if earlier.failed.any() else "had stopped at its event"
        raise ValueError(f"init must be a Trajectory that reached its last time, {how}.")
    layout = flow.classes.layout
    full = len(earlier.decoder_tokens) != len(layout.decoder.tokens)
    zero, one = initial.zeros(layout, dtype, full), jnp.ones((), dtype)
    structure = jax.tree.structure(
        jax.eval_shape(lambda: flow.initial(*zero, LearningRates(one, one)))
    )
    return jax.tree.unflatten(structure, [jnp.asarray(x) for x in earlier.state])


def _same_classes(a: SequenceClasses, b: SequenceClasses) -> bool:
    """Whether two class sets are the same, as far as their numbers are known."""
    if a.layout != b.layout:
        return False
    numbers = (a.support_probs, a.weights), (b.support_probs, b.weights)
    known = checks.is_concrete(numbers)
    return not known or all(map(np.array_equal, *numbers))


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


def _raise_failure(solution: Solution, ts: Any, max_steps: int) -> Solution:
    """SolveError where values are known; the same as a compiled check where they are traced."""
    advice = "Loosen rtol or atol, raise max_steps, or pass a stiff solver (diffrax.Kvaerno5())."
    status, end_time = solution.status, solution.end_time
    good = (status == Status.SUCCESS) | (status == Status.EVENT)
    if not checks.is_concrete(status, end_time):
        return eqx.error_if(solution, jnp.any(~good), f"A solve failed. {advice}")
    failed = np.flatnonzero(~np.asarray(good).ravel())
    if failed.size:
        first = int(failed[0])
        reason = Status(int(np.asarray(status).ravel()[first]))
        reached = float(np.asarray(end_time).ravel()[first])
        many = f"{failed.size} of {np.size(status)} solves" if np.ndim(status) else "The solve"
        where = f" (the first at flat index {first})" if np.ndim(status) else ""
        raise SolveError(
            f"{many} failed{where}: {reason.sentence(max_steps)}, at t = {reached:.6g} of "
            f"{float(ts[-1]):.6g}. {advice}"
        )
    return solution
