"""One common token, alone: the scalar flow behind Theorem 4."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from scan_snap_ode import checks
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory import decoder_clock as clock

Logits = Float[Array, "Q S"]


class CommonTokenFlow(eqx.Module):
    r"""The logit z of one common token under one query, K equal classes (paper, Section 4):

        dz/dt = −η_Z γ(t) e^{4z}/C₀,   so that   z = −B(t) from z = 0 (Theorem 4, `growth_bound`)

    A Trajectory of it has one query (token 1) and one contextual token (token 0), whose attention
    logit is z; there is no decoder to see (NaN).

    Args:
        vocab_size: M ≥ K + 2.
        num_classes: K ≥ 1.
        c0: C₀ > 0, the constant of the common token's overlap (Theorem 4): 1/((K−1) f₀⁴) for K
            equal classes with f₀ = P(common)/|Pᵢ|₂.

    Raises:
        ValueError: for an argument that is not as above.

    >>> import scan_snap_ode as sso
    >>> rates = sso.LearningRates(1.0, 1.0)
    >>> run = sso.integrate(sso.CommonTokenFlow(1000, 10, 1.0), rates, [100.0])
    >>> bound = sso.growth_bound(100.0, rates, 1000, 10, 1.0)
    >>> bool(abs(run.attention_logits[0, 0, 0] + bound) < 1e-6)
    True
    """

    classes: SequenceClasses
    c0: Float[Array, ""]
    has_intrinsic_time = True
    starts_with_zero_decoder = True
    decoder_by_clock = True

    def __init__(self, vocab_size: int, num_classes: int, c0: Any):
        num_classes = checks.integer("num_classes", num_classes, 1)
        vocab_size = checks.integer("vocab_size", vocab_size, num_classes + 2)
        checks.positive("c0", c0, scalar=True)
        alone = np.zeros((num_classes, 1), np.int32), np.ones((num_classes, 1))
        self.classes = SequenceClasses.from_sparse(
            *alone,
            query=np.ones(num_classes, np.int32),
            next_token=2 + np.arange(num_classes),
            vocab_size=vocab_size,
            origin="one common token",
        )
        self.c0 = jnp.asarray(c0, self.classes.support_probs.dtype)

    @property
    def method(self) -> str:
        c0 = str(np.asarray(self.c0)) if checks.is_concrete(self.c0) else "traced"
        return f"CommonTokenFlow(c0={c0})"

    def __repr__(self) -> str:
        return f"{self.method} of {self.classes!r}"

    def initial(self, Y: Float[Array, "S D"], Z: Logits, rates: LearningRates) -> Logits:
        return Z

    def derivative(self, t: Any, state: Logits, rates: LearningRates) -> Logits:
        M = jnp.asarray(self.classes.vocab_size, state.dtype)
        visits = t / self.classes.num_classes
        gamma = clock.drive(clock.scaled_height(M * rates.decoder * visits, M), M)
        return rates.attention * gamma * self.intrinsic_derivative(state)

    def readout(self, t: Any, state: Logits, rates: LearningRates) -> State:
        return jnp.full((1, len(self.classes.layout.decoder.tokens)), jnp.nan, state.dtype), state

    def intrinsic_time(self, t: Any, rates: LearningRates) -> Float[Array, "*axes"]:
        """Γ(t), behind the axes of the rates."""
        num_classes = self.classes.num_classes
        return clock.decoder_clock(t, rates, self.classes.vocab_size, num_classes).Gamma

    def intrinsic_derivative(self, state: Logits) -> Logits:
        return -jnp.exp(4 * state) / self.c0.astype(state.dtype)
