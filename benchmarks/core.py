"""The core: the trainer, the flow, the gradient of many windows."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import scan_snap_ode as sso
from scan_snap_ode.flows.objective import BlockedObjective, PaddedObjective
from scan_snap_ode.problem import initial


class Figure(NamedTuple):
    """One measured number."""

    name: str
    unit: str
    median: float
    smallest: float
    largest: float
    repeats: int

    def __str__(self) -> str:
        span = f"{self.smallest:.4g} to {self.largest:.4g}"
        return f"{self.name:<64} {self.median:>10.4g} {self.unit}  ({span}, {self.repeats} runs)"


def figure(name: str, unit: str, values: list[float]) -> Figure:
    """The median of some runs."""
    return Figure(name, unit, statistics.median(values), min(values), max(values), len(values))


def timed(run: Callable[[], object]) -> float:
    """Seconds, until the result is there."""
    began = time.perf_counter()
    jax.block_until_ready(run())
    return time.perf_counter() - began


def trainer(repeats: int) -> list[Figure]:
    """The setting of the paper's Fig. 4: Syn-Small, fresh batches of 128 windows of 128 tokens,
    momentum 0.9, one seed, 10,000 steps. The authors' PyTorch code: 295 steps/s on two cores."""
    classes, rates, steps = sso.syn_small(), sso.LearningRates(1.0, 1.0), 10_000

    def run(seed: int) -> sso.Trajectory:
        return sso.train(classes, rates, steps, momentum=0.9, seed=seed, record_at=[0, steps])

    run(0)
    speeds = [steps / timed(lambda k=k: run(k).decoder) for k in range(1, repeats + 1)]
    return [figure("train syn_small, 1 seed, 10,000 steps, compiled", "steps/s", speeds)]


_FROM_NOTHING = """
import time, numpy as np, scan_snap_ode as sso
sso.enable_double_precision()
import jax; jax.numpy.zeros(1).block_until_ready()
began = time.perf_counter()
run = sso.integrate(sso.JointFlow(sso.syn_small()), sso.LearningRates(1.0, 1.0),
                    np.geomspace(1, 1000, 20))
run.decoder.block_until_ready()
print(time.perf_counter() - began)
"""


# What diffrax itself takes for a solve of as many numbers, y' = -y.
_BARE_DIFFRAX = """
import time, numpy as np, diffrax, equinox, jax
jax.config.update("jax_enable_x64", True)
jax.numpy.zeros(1).block_until_ready()
began = time.perf_counter()
@equinox.filter_jit
def solve(y, ts):
    return diffrax.diffeqsolve(
        diffrax.ODETerm(lambda t, y, args: -y), diffrax.Tsit5(), 0.0, ts[-1], 0.01, y,
        saveat=diffrax.SaveAt(ts=ts), stepsize_controller=diffrax.PIDController(1e-7, 1e-9),
        max_steps=100_000).ys
solve(jax.numpy.asarray(np.ones(150)), jax.numpy.asarray(np.geomspace(1, 1000, 20))
      ).block_until_ready()
print(time.perf_counter() - began)
"""


def _printed(code: str) -> float:
    """The number that a new process prints."""
    command = [sys.executable, "-c", code]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def joint_flow(repeats: int) -> list[Figure]:
    """The joint flow of Syn-Small to t = 1000, in a new process with compilation (beside y' = -y
    in turns, as machines differ), then again."""
    first, bare = zip(
        *[(_printed(_FROM_NOTHING), _printed(_BARE_DIFFRAX)) for _ in range(repeats)], strict=True
    )
    flow, rates, ts = (
        sso.JointFlow(sso.syn_small()),
        sso.LearningRates(1.0, 1.0),
        np.geomspace(1, 1000, 20),
    )
    sso.integrate(flow, rates, ts)
    again = [timed(lambda: sso.integrate(flow, rates, ts).decoder) for _ in range(repeats)]
    return [
        figure("joint flow of syn_small to t = 1000, compilation included", "s", list(first)),
        figure(
            "  as a multiple of bare diffrax on y' = -y",
            "",
            [a / b for a, b in zip(first, bare, strict=True)],
        ),
        figure("joint flow of syn_small to t = 1000, compiled", "ms", [1e3 * t for t in again]),
    ]


def gradient(repeats: int) -> list[Figure]:
    """One full-batch gradient of a text's windows, in both layouts, inside one compiled loop."""
    stream = sso.load_corpus("python-reference")
    windows = sso.windows(
        stream, 64, query=16, next_token=24, num_classes=96, vocab_size=300, words_only=True
    )
    classes = windows.as_classes()
    state = initial.zeros(classes.layout, float)
    figures = []
    for layout in (BlockedObjective, PaddedObjective):
        J = layout(classes)

        @jax.jit
        def climb(J, state):
            def step(_, state):
                _, gradient = J.value_and_gradient(*state)
                return jax.tree.map(lambda x, d: x + 0.5 * d, state, gradient)

            return jax.lax.fori_loop(0, 20, step, state)

        jax.block_until_ready(climb(J, state))
        times = [1e3 * timed(lambda climb=climb, J=J: climb(J, state)) / 20 for _ in range(repeats)]
        name = f"gradient of {len(windows):,} windows, {layout.__name__}"
        figures.append(figure(name, "ms", times))
    return figures


def pooled_rates(repeats: int) -> list[Figure]:
    """512 pairs of rates at once, against one pair."""
    flow, ts = sso.JointFlow(sso.single_common_token(10, 1000, 0.1, 10)), jnp.geomspace(1, 1e5, 20)
    grid = sso.LearningRates(1.0, np.geomspace(0.01, 1, 512))
    sso.integrate(flow, grid, ts)
    times = [
        1e3 * timed(lambda: sso.integrate(flow, grid, ts).decoder) / 512 for _ in range(repeats)
    ]
    return [figure("joint flow K = 10, S = 101 to t = 1e5, a solve of 512", "ms", times)]


def intrinsic_time(repeats: int) -> list[Figure]:
    """4,096 pairs of rates of slow attention in one solve, beside single solves; in turns."""
    flow = sso.SlowAttentionFlow(sso.single_common_token(10, 1000, 0.1, 10))
    ts = np.geomspace(1, 1e5, 50)
    rng = np.random.default_rng(0)
    decoder, attention = 10.0 ** rng.uniform(-1, 1, (2, 4096))

    def solve(rates: sso.LearningRates) -> Any:
        return sso.integrate(flow, rates, ts, rtol=1e-9, atol=1e-11).attention_logits

    def singles() -> Any:
        return [solve(sso.LearningRates(decoder[i], attention[i])) for i in range(0, 4096, 64)]

    batch = sso.LearningRates(decoder, attention)
    jax.block_until_ready([solve(batch), singles()])
    pairs = [(timed(lambda: solve(batch)), timed(singles) / 64) for _ in range(repeats)]
    ratios = [batch_time / (4096 * single) for batch_time, single in pairs]
    together, alone = ([1e3 * p[k] for p in pairs] for k in range(2))
    return [
        figure("slow attention K = 10, S = 101 to t = 1e5, rtol 1e-9", "ms", alone),
        figure("  4,096 pairs of rates in one solve", "ms", together),
        figure("  as a part of 4,096 single solves", "", ratios),
    ]


ALL = (trainer, joint_flow, gradient, pooled_rates, intrinsic_time)
