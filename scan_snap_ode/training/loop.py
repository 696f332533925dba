"""The loop of training: compiled segments of steps, between which the host records, saves, shows
progress and hears ctrl-C."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax import lax
from jaxtyping import Array
from tqdm import tqdm

from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.training.batches import Sampler

_BREATH = 0.5  # longest segment, in seconds


class Carry(NamedTuple):
    """What goes from step to step; every leaf has leading axes for seeds, then rates."""

    params: State
    optimizer: Any
    loss: Array


class Stepper(NamedTuple):
    """All that a step needs and does not change."""

    sampler: Sampler
    transformation: optax.GradientTransformation
    rates: LearningRates
    seeds: np.ndarray

    @property
    def keys(self) -> Array:
        """(seeds,) a random key for each seed."""
        return jnp.stack([jax.random.key(int(s), impl="threefry2x32") for s in self.seeds])

    def begin(self, params: State) -> Carry:
        """The carry before the first step."""
        lead = (len(self.seeds), *self.rates.shape)
        init: Callable[..., Any] = self.transformation.init
        for _ in lead:
            init = jax.vmap(init)
        return Carry(params, init(params), jnp.full(lead, jnp.nan, params[0].dtype))

    def advance(self, carry: Carry, start: int, stop: int) -> Carry:
        """The carry after updates start, …, stop−1."""
        bounds = jnp.asarray(start, jnp.int32), jnp.asarray(stop, jnp.int32)
        return _advance(self.sampler, self.transformation, self.rates, self.keys, carry, *bounds)


@eqx.filter_jit
def _advance(sampler, transformation, rates, keys, carry, start, stop):
    # The bounds are traced: one compiled program serves every segment.
    def one_seed(key, carry):
        def step(i, carry):
            batch = sampler.draw(jax.random.fold_in(key, i), i)  # one for all rates

            def update(rates, carry):
                loss, gradient = sampler.loss_and_gradient(carry.params, batch)
                (dY, dZ), optimizer = transformation.update(gradient, carry.optimizer, carry.params)
                Y, Z = carry.params
                params = Y - rates.decoder * dY, Z - rates.attention * dZ
                return Carry(params, optimizer, loss)

            return _over(rates.shape, update, rates, carry)

        return lax.fori_loop(start, stop, step, carry)

    return lax.map(lambda x: one_seed(*x), (keys, carry))


def _over(axes, update, rates, carry):
    """`update` for each pair of rates, one after the other: batched gathers would be slower."""
    if not axes:
        return update(rates, carry)
    flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[len(axes) :]), (rates, carry))
    result = lax.map(lambda x: update(*x), flat)
    return jax.tree.map(lambda x: x.reshape(*axes, *x.shape[1:]), result)


def segments(
    stepper: Stepper, carry: Carry, start: int, stops: list[int], progress: bool
) -> Iterator[tuple[int, Carry]]:
    """Yield (updates done, carry) from `start` on, at every one of `stops` and in between, never
    much more than `_BREATH` apart."""
    step, length = start, 1
    with tqdm(
        total=stops[-1], initial=start, unit="step", disable=not progress, leave=False
    ) as bar:
        for stop in stops:
            while step < stop:
                count = min(length, stop - step)
                began = time.monotonic()
                carry = jax.block_until_ready(stepper.advance(carry, step, step + count))
                pace = (time.monotonic() - began) / count
                length = max(1, min(2 * length, int(_BREATH / max(pace, 1e-9))))
                step += count
                bar.update(count)
                yield step, carry
