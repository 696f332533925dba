"""Slow attention: the decoder in closed form, attention driven by its clock (paper, Theorem 1)."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from scan_snap_ode import checks
from scan_snap_ode.flows import base
from scan_snap_ode.flows.class_vectors import ClassVectors, check_rank, solve_gram
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory import decoder_clock as clock

Logits = Float[Array, "Q S"]


class SlowAttentionFlow(eqx.Module):
    r"""Attention under a decoder already where it will go (paper, Theorems 1 and 5, Lemma 4):

        Y  = FG⁻¹W,   Wᵢ = hᵢ ((M−1) at nᵢ, −1 elsewhere),   hᵢ = h(wᵢ t)
        gᵢ = M²/(M − 1 + e^{M hᵢ}) FG⁻¹ (h ∘ (sᵢ − 1/M)),    s_ij = [nᵢ = nⱼ]

    Assumes slow attention and the modified gradient. With equal weights there is one clock, and the
    flow is autonomous in the intrinsic time Γ (`decoder_clock`): `integrate` then solves it once in
    Γ for any number of learning rates, and the decoder is computed when asked for. With unequal
    weights each class has its own clock, there is no Γ, and every pair of rates is a solve in t.

    Args:
        classes: what is learned; their class vectors must be linearly independent.
        leading_order: drop the terms of relative order 1/M in gᵢ, as the paper does; in what moves
            attention they are of order 1/(M·overlap).

    Raises:
        ValueError: when the class vectors are dependent, naming the classes.

    >>> import numpy as np, scan_snap_ode as sso
    >>> flow = sso.SlowAttentionFlow(sso.single_common_token(10, 1000, 0.1, 10))
    >>> rates = sso.LearningRates(np.geomspace(0.1, 10, 100), 0.1)
    >>> run = sso.integrate(flow, rates, [10.0, 1e4])      # one solve
    >>> run.attention_logits.shape
    (100, 2, 1, 101)
    """

    classes: SequenceClasses
    vectors: ClassVectors
    same_next: Float[Array, "N N"]
    leading_order: bool = eqx.field(static=True)
    has_intrinsic_time: bool = eqx.field(static=True)
    starts_with_zero_decoder = True
    decoder_by_clock = True

    def __init__(self, classes: SequenceClasses, *, leading_order: bool = False):
        self.classes = base.check_classes(classes)
        checks.kind("leading_order", leading_order, bool)
        check_rank(classes, "SlowAttentionFlow")
        self.vectors = ClassVectors(classes)
        following = classes.next_token
        dtype = classes.support_probs.dtype
        self.same_next = jnp.asarray(np.equal.outer(following, following).astype(dtype))
        self.leading_order = leading_order
        self.has_intrinsic_time = _uniform(classes.weights)

    @property
    def method(self) -> str:
        return "SlowAttentionFlow" + ("(leading_order=True)" if self.leading_order else "")

    def __repr__(self) -> str:
        return f"{self.method} of {self.classes!r}"

    def initial(self, Y: Float[Array, "S D"], Z: Logits, rates: LearningRates) -> Logits:
        return Z

    def derivative(self, t: Any, state: Logits, rates: LearningRates) -> Logits:
        M, u = self._height(t, rates, state.dtype)
        # M²/(M − 1 + e^u), and the paper's (M−1)² where only leading order is kept
        scale = (M if not self.leading_order else M - 1) ** 2 / (M - 1)
        gain = scale / (1 + jnp.exp(u - jnp.log(M - 1)))
        return rates.attention * self._pull(state, u / M, gain)

    def readout(self, t: Any, state: Logits, rates: LearningRates) -> State:
        M, u = self._height(t, rates, state.dtype)
        decoder = self.classes.layout.decoder
        at_next = np.equal.outer(self.classes.next_token, decoder.tokens).astype(state.dtype)
        W = (u / M)[:, None] * (M * at_next - 1)
        F = self.vectors.at(state)
        return F.T @ solve_gram(F, W), state

    def intrinsic_time(self, t: Any, rates: LearningRates) -> Float[Array, "*axes"]:
        """Γ(t) = η_Z ∫γ dt, behind the axes of the rates.

        Raises:
            ValueError: when the weights are not equal.
        """
        if not self.has_intrinsic_time:
            raise ValueError(
                "weights must be equal for one clock and an intrinsic time, were not: each class "
                "has its own clock h(w_i t). integrate() solves such a flow in t."
            )
        num_classes = self.classes.num_classes
        return clock.decoder_clock(t, rates, self.classes.vocab_size, num_classes).Gamma

    def intrinsic_derivative(self, state: Logits) -> Logits:
        M, N = self.classes.vocab_size, self.classes.num_classes
        ones = jnp.ones(N, state.dtype)
        gain = 1.0 if self.leading_order else (M / (M - 1)) ** 2
        return self._pull(state, ones, gain * ones)

    def _height(self, t: Any, rates: LearningRates, dtype: Any) -> tuple[Array, Array]:
        """M, and u = M h of each class."""
        M = jnp.asarray(self.classes.vocab_size, dtype)
        visits = self.vectors.weights.astype(dtype) * t
        return M, clock.scaled_height(M * rates.decoder * visits, M)

    def _pull(
        self, Z: Logits, h: Float[Array, " N"], gain: Float[Array, " N"]
    ) -> Float[Array, "Q S"]:
        """Lemma 1 with gᵢ = gainᵢ FG⁻¹ (h ∘ (sᵢ − 1/M)); fᵢ·gᵢ = gainᵢ hᵢ (1 − 1/M)."""
        F = self.vectors.at(Z)
        shared = 0.0 if self.leading_order else 1 / self.classes.vocab_size
        target = (self.same_next.astype(Z.dtype) - shared) * h[:, None]  # a column for each class
        g = gain[:, None] * (solve_gram(F, target).T @ F)
        return self.vectors.pull(F, g, gain * h * (1 - shared))


def _uniform(weights: Any) -> bool:
    """Whether known weights are equal to rounding."""
    if not checks.is_concrete(weights):
        return False
    host = np.asarray(weights)
    return bool(np.ptp(host) <= 8 * np.finfo(host.dtype).eps * host.max())
