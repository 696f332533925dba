"""The flow of SGD on windows that are long but not infinitely long."""

from __future__ import annotations

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from scan_snap_ode import checks
from scan_snap_ode.flows import base
from scan_snap_ode.flows.adiabatic import AdiabaticFlow
from scan_snap_ode.flows.class_vectors import ClassVectors, check_rank
from scan_snap_ode.flows.finite_step import FiniteStep
from scan_snap_ode.flows.heavy_ball import HeavyBall
from scan_snap_ode.flows.objective import Objective, objective
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.initial import State
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.streams.windows import Windows
from scan_snap_ode.theory import attention


class FiniteContext(base.Wrapper):
    r"""A flow that climbs the mean objective of windows of T tokens instead of infinitely many, to
    first order in 1/T:

        J_T = Σᵢ wᵢ [Jᵢ(Pᵢ) + ½ tr(∇²Jᵢ(Pᵢ) Cᵢ)]

    with Jᵢ(x) the log-likelihood at token frequencies x, and Cᵢ their covariance over the windows
    of class i: (diag Pᵢ − PᵢPᵢᵀ)/(T−1) for tokens drawn independently, or the one measured on
    `windows` of a text, which are not. The modified and adiabatic flows follow the part of the
    added gradient that lies in the span of the class vectors. The series is one in Σ_l f_l²/P_l/T:
    in windows much shorter than a class has tokens the correction may be worse than none.

    Args:
        flow: a flow of decoder and attention on classes; not a window flow, which sees the windows.
        context_length: T ≥ 2, counting the query.
        windows: instead of `context_length`, the windows whose `classes()` the flow is of.

    Raises:
        ValueError: for another flow, both or neither of the last two, or windows of other classes.

    >>> import scan_snap_ode as sso
    >>> flow = sso.FiniteContext(sso.JointFlow(sso.syn_small()), context_length=128)
    >>> run = sso.integrate(flow, sso.LearningRates(0.25, 0.25), [10.0, 400.0])
    >>> run.about["method"]
    'FiniteContext(JointFlow, context_length=128)'
    """

    correction: ContextCorrection

    def __init__(self, flow: Any, context_length: int | None = None, *, windows: Any = None):
        reasons: dict[type, str] = {
            FiniteContext: "its context is finite already",
            FiniteStep: "put FiniteStep outermost",
            HeavyBall: "put HeavyBall outermost",
        }
        base.check_wrapped("FiniteContext", flow, reasons)
        classes = flow.classes
        if classes.pooled is not None:
            raise ValueError(
                "flow must be of classes, not of single windows, whose context is finite already; "
                "take windows.classes()."
            )
        if (context_length is None) == (windows is None):
            raise ValueError("give either context_length or windows, one of the two.")
        if isinstance(flow, AdiabaticFlow):
            check_rank(classes, "FiniteContext of AdiabaticFlow")
        self.flow = flow
        if windows is None:
            tokens = IndependentTokens(checks.integer("context_length", context_length, 2))
            self.correction = ContextCorrection(classes, tokens)
        else:
            self.correction = ContextCorrection(classes, MeasuredWindows.of(windows, classes))

    @property
    def method(self) -> str:
        return f"FiniteContext({base.method(self.flow)}, {self.correction.covariance.name})"

    def derivative(self, t: Any, state: Any, rates: LearningRates) -> Any:
        plain = self.flow.derivative(t, state, rates)
        _, gradient = self.correction.value_and_gradient(*self.flow.readout(t, state, rates))
        return jax.tree.map(jnp.add, plain, self.along(state, gradient, rates))

    def along(self, state: Any, gradient: State, rates: LearningRates) -> Any:
        return self.flow.along(state, gradient, rates)


class ContextCorrection(eqx.Module):
    """J_T − J, in the manner of an objective; its gradient by autodiff of the closed form."""

    classes: SequenceClasses
    vectors: ClassVectors
    covariance: IndependentTokens | MeasuredWindows

    def __init__(self, classes: SequenceClasses, covariance: IndependentTokens | MeasuredWindows):
        self.classes, self.vectors = classes, ClassVectors(classes)
        self.covariance = covariance

    def value(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]) -> Float[Array, ""]:
        decoder = self.classes.layout.decoder_of_width(Y.shape[1])
        F = self.vectors.at(Z)
        scores = F @ Y
        _, residual = attention.log_likelihood_and_residual(
            scores, jnp.asarray(decoder.multiplicity, Y.dtype), jnp.asarray(decoder.target)
        )
        probs = jax.nn.one_hot(decoder.target, Y.shape[1], dtype=Y.dtype) - residual
        return self.covariance.trace(self.vectors, F, Y, scores, residual, probs)

    def value_and_gradient(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]
    ) -> tuple[Float[Array, ""], State]:
        value, (dY, dZ) = jax.value_and_grad(self.value, argnums=(0, 1))(Y, Z)
        decoder = self.classes.layout.decoder_of_width(Y.shape[1])
        return value, (dY / jnp.asarray(decoder.multiplicity, Y.dtype)[None, :], dZ)


class FiniteContextObjective(eqx.Module):
    """J_T = J + (J_T − J)."""

    objective: Objective
    correction: ContextCorrection

    def __init__(self, classes: SequenceClasses, context_length: int):
        self.objective = objective(classes)
        self.correction = ContextCorrection(classes, IndependentTokens(context_length))

    def value(self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]) -> Float[Array, ""]:
        return self.objective.value(Y, Z) + self.correction.value(Y, Z)

    def value_and_gradient(
        self, Y: Float[Array, "S D"], Z: Float[Array, "Q S"]
    ) -> tuple[Float[Array, ""], State]:
        plain = self.objective.value_and_gradient(Y, Z)
        return jax.tree.map(jnp.add, plain, self.correction.value_and_gradient(Y, Z))


class IndependentTokens(eqx.Module):
    """Windows of T − 1 tokens drawn independently from P. With y_l row l of Y and s = Yᵀf,

        ½ tr(∇²J C) = 1/(2(T−1)) Σ_l (f_l²/P_l) {(e_n − α)·[(3f_l² − 1) s − 2 f_l y_l]
                                                 − Var_α(y_l − f_l s)}

    since J does not feel the scale of P, so that Pᵀ∇²J P = 0."""

    context_length: int = eqx.field(static=True)

    @property
    def name(self) -> str:
        return f"context_length={self.context_length}"

    def trace(self, vectors, F, Y, scores, residual, probs) -> Float[Array, ""]:
        along = jnp.sum(scores * residual, axis=1, keepdims=True)  # (e_n − α)·s
        slope = (3 * F**2 - 1) * along - 2 * F * (residual @ Y.T)
        mean = probs @ Y.T - F * jnp.sum(probs * scores, axis=1, keepdims=True)
        square = (
            probs @ (Y**2).T
            - 2 * F * ((probs * scores) @ Y.T)
            + F**2 * jnp.sum(probs * scores**2, axis=1, keepdims=True)
        )
        P = vectors.probs.astype(F.dtype)
        curvature = F**2 / jnp.where(P > 0, P, 1) * (slope - (square - mean**2))
        weights = vectors.weights.astype(F.dtype)
        return weights @ jnp.sum(curvature, axis=1) / (2 * (self.context_length - 1))


class MeasuredWindows(eqx.Module):
    """The windows x of a text: ½ tr(∇²J C) is the mean of ½ xᵀ∇²J x over the windows of the class.
    With q = (x∘e^z)/|P∘e^z|, a = f·q, s = Yᵀf:

        xᵀ∇²J x = (e_n − α)·[(3a² − |q|²) s − 2a Yᵀq] − Var_α(Yᵀq − a s)
    """

    x: Float[Array, "W S"]
    row: Int[Array, " W"]  # the class of each window
    context_length: int = eqx.field(static=True)

    @classmethod
    def of(cls, windows: Any, classes: SequenceClasses) -> MeasuredWindows:
        checks.kind("windows", windows, Windows)
        single, own = windows.as_classes(), windows.classes()
        if own.layout != classes.layout:
            raise ValueError(
                f"windows must be those that the flow's classes were made of, were {len(windows)} "
                f"windows of {windows.name} in {own.num_classes} classes; the flow's are others."
            )
        support = len(classes.support_tokens)
        checks.dense_size("windows", len(windows), support)
        dense = single.dense(single.support_probs, single.layout.columns, support)
        return cls(dense, jnp.asarray(windows.class_index), windows.context_length)

    @property
    def name(self) -> str:
        return f"{len(self.row)} windows of {self.context_length}"

    def trace(self, vectors, F, Y, scores, residual, probs) -> Float[Array, ""]:
        row = self.row
        # e^z/|P∘e^z| as f/P does not exist where P = 0; no window holds such a token.
        P = vectors.probs.astype(F.dtype)
        q = self.x.astype(F.dtype) * (F / jnp.where(P > 0, P, 1))[row]
        a = jnp.sum(q * F[row], axis=1, keepdims=True)
        pulled, s, residual, probs = q @ Y, scores[row], residual[row], probs[row]
        bend = (3 * a**2 - jnp.sum(q**2, axis=1, keepdims=True)) * s - 2 * a * pulled
        moved = pulled - a * s
        variance = jnp.sum(probs * moved**2, axis=1) - jnp.sum(probs * moved, axis=1) ** 2
        return jnp.mean(jnp.sum(residual * bend, axis=1) - variance) / 2
