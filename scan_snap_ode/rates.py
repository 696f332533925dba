"""Learning rates, and the one law from learning rate to time."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from scan_snap_ode import checks


class LearningRates(eqx.Module):
    """The two learning rates of the model, per step of SGD on the mean loss of a batch.

    The unit of time everywhere is one such step: SGD with rates (η_Y, η_Z) follows the gradient
    flow with the same rates, and t counts steps (paper, Lemmas 1 and 2).

    Args:
        decoder: η_Y > 0; an array adds leading axes to every result.
        attention: η_Z > 0; broadcast against `decoder`.

    Raises:
        ValueError: when a rate is not positive and finite, or the shapes do not broadcast.

    >>> import scan_snap_ode as sso
    >>> rates = sso.LearningRates(decoder=1.0, attention=0.1)
    >>> float(rates.ratio)
    10.0
    """

    decoder: Float[Array, "*batch"]
    attention: Float[Array, "*batch"]

    def __init__(self, decoder: Any = 1.0, attention: Any = 0.1):
        decoder, attention = _rate("rates.decoder", decoder), _rate("rates.attention", attention)
        try:
            self.decoder, self.attention = jnp.broadcast_arrays(decoder, attention)
        except ValueError as error:
            raise ValueError(
                f"rates must have shapes that broadcast, had {decoder.shape} for decoder "
                f"and {attention.shape} for attention."
            ) from error

    @property
    def ratio(self) -> Float[Array, "*batch"]:
        """η_Y / η_Z, all that the shape of a flow's trajectory depends on."""
        return self.decoder / self.attention

    @property
    def shape(self) -> tuple[int, ...]:
        """The batch axes."""
        return self.decoder.shape

    def with_momentum(self, momentum: float) -> LearningRates:
        """Rates of the flow that heavy-ball SGD follows to leading order: η/(1 − μ).

        Raises:
            ValueError: when `momentum` is outside [0, 1).
        """
        checks.within("momentum", momentum, 0, 1)
        return LearningRates(self.decoder / (1 - momentum), self.attention / (1 - momentum))

    def __repr__(self) -> str:
        def show(x: Array) -> str:
            return f"{float(x):g}" if x.ndim == 0 else f"array{x.shape}"

        if not checks.is_concrete(self.decoder, self.attention):
            return "LearningRates(traced)"
        return f"LearningRates(decoder={show(self.decoder)}, attention={show(self.attention)})"


def _rate(name: str, value: Any) -> Array:
    checks.positive(name, value)
    if checks.is_concrete(value):
        with np.errstate(over="ignore", under="ignore"):
            value = np.asarray(value, jax.dtypes.canonicalize_dtype(float))
        checks.positive(f"{name} in single precision", value)
    return jnp.asarray(value, float)
