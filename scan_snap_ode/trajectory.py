"""Trajectory: what every run returns, from an ODE or from SGD."""

from __future__ import annotations

import enum
import numbers
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Int
from numpy.typing import NDArray

from scan_snap_ode import checks
from scan_snap_ode.flows.base import Flow
from scan_snap_ode.flows.objective import PaddedObjective
from scan_snap_ode.problem.classes import SequenceClasses, positions
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.theory import attention

if TYPE_CHECKING:
    import matplotlib.figure
    import xarray as xr


class Status(enum.IntEnum):
    """How a run ended."""

    SUCCESS = 0
    MAX_STEPS = 1
    NOT_FINITE = 2
    EVENT = 3

    def sentence(self, max_steps: int | None = None) -> str:
        """For a human."""
        return {
            Status.SUCCESS: "reached its last time",
            Status.MAX_STEPS: f"max_steps = {max_steps} was used up",
            Status.NOT_FINITE: "the values stopped being finite or the step became too small",
            Status.EVENT: "the event that it was to stop at came",
        }[self]


class Interrupted(KeyboardInterrupt):
    """Work that ctrl-C ended; `.partial` holds what was done: a Trajectory or an ErrorBudget."""

    def __init__(self, partial: Any):
        super().__init__("interrupted")
        self.partial = partial


class Trajectory(eqx.Module):
    """Y and Z of one or many runs at recorded times, labelled.

    Axes: leading ones for seeds (where there are several), then those of `rates`; T times, Q query
    tokens, S support tokens, D decoder columns. A pytree: passes through jit and vmap.

    Attributes:
        classes: what was learned (`.layout` labels the axes below).
        rates: learning rates.
        ts: (T,) times in steps.
        attention_logits: (..., T, Q, S) rows of Z at `query_tokens`, columns at `support_tokens`.
        decoder: (..., T, S, D) rows of Y at `support_tokens`, columns at `decoder_tokens`; computed
            when asked for where a flow's attention determines it (`SlowAttentionFlow`).
        status: (...) of type `Status`, 0 = reached the last time.
        stats: counts of solver steps or updates; of an ODE also `end_time`, the time reached.
        batch_loss: (..., T) SGD only: loss of the batch of the latest update, before it; NaN at 0.
        state: leaves of the final state, from which the run can be continued.
    """

    classes: SequenceClasses
    rates: LearningRates
    ts: Float[Array, " T"]
    attention_logits: Float[Array, "*axes T Q S"]
    _decoder: Float[Array, "*axes T S D"] | None
    _flow: Flow | None  # computes the decoder where none is kept
    status: Array
    stats: dict[str, Array]
    state: tuple[Array, ...]
    batch_loss: Float[Array, "*axes T"] | None
    _about: tuple[tuple[str, Any], ...] = eqx.field(static=True)

    def __init__(
        self,
        *,
        classes: SequenceClasses,
        rates: LearningRates,
        ts: Any,
        attention_logits: Any,
        decoder: Any = None,
        flow: Flow | None = None,
        status: Any,
        stats: dict[str, Any],
        state: Sequence[Any] = (),
        batch_loss: Any = None,
        about: Mapping[str, Any],
    ):
        self.classes, self.rates, self.ts = classes, rates, ts
        self.attention_logits = attention_logits
        self._decoder, self._flow = decoder, flow
        self.status, self.stats, self.state = status, stats, tuple(state)
        self.batch_loss, self._about = batch_loss, tuple(sorted(about.items()))

    @property
    def about(self) -> dict[str, Any]:
        """Facts of the run: method, solver or optimizer, seed and the like."""
        return dict(self._about)

    @property
    def failed(self) -> NDArray[np.bool_]:
        """(...) which runs ended before their last time, other than at an event."""
        return np.isin(np.asarray(self.status), (Status.MAX_STEPS, Status.NOT_FINITE))

    @property
    def axes(self) -> tuple[int, ...]:
        """The leading axes, of seeds and rates."""
        return self.attention_logits.shape[:-3]

    @property
    def decoder(self) -> Float[Array, "*axes T S D"]:
        """Y.

        Raises:
            ValueError: where it has to be computed and would be too large.
        """
        if self._decoder is not None:
            return self._decoder
        assert self._flow is not None
        shape = (*self.attention_logits.shape[:-2], len(self.support_tokens), self._width)
        checks.dense_size("decoder", *shape, instead="Take single runs by .at(index).")
        return _decoders(self._flow, self.ts, self.attention_logits, self.rates)

    @property
    def _width(self) -> int:
        """D."""
        if self._decoder is None:
            return len(self.classes.layout.decoder.tokens)
        return self._decoder.shape[-1]

    @property
    def query_tokens(self) -> np.ndarray:
        """(Q,) token of each row of the attention logits."""
        return self.classes.query_tokens

    @property
    def support_tokens(self) -> np.ndarray:
        """(S,) token of each column of the attention logits and row of the decoder."""
        return self.classes.support_tokens

    @property
    def decoder_tokens(self) -> np.ndarray:
        """(D,) token of each decoder column; -1 = the column shared by all never-next tokens."""
        return self.classes.layout.decoder_of_width(self._width).tokens

    @property
    def measured_classes(self) -> SequenceClasses:
        """The N classes on which attention is taken: the source's, pooled where it is windows."""
        return self.classes if self.classes.pooled is None else self.classes.pooled

    @property
    def attention(self) -> Float[Array, "*axes T N S"]:
        """c_i of every measured class over the support tokens.

        Raises:
            ValueError: when that array would be too large.
        """
        return self.attention_on(self.measured_classes)

    def attention_on(self, classes: SequenceClasses) -> Float[Array, "*axes T N S"]:
        """c_i of other classes under this run's Z, over this run's support tokens.

        Raises:
            ValueError: when a query or support token of `classes` has no logit here, or the array
                would be too large.
        """
        columns, c = self.padded_attention(classes)
        checks.dense_size("attention", *c.shape[:-1], len(self.support_tokens))
        rows = np.arange(classes.num_classes)[:, None]
        dense = jnp.zeros((*c.shape[:-1], len(self.support_tokens)), c.dtype)
        return dense.at[..., rows, columns].add(c)

    @property
    def entropy(self) -> Float[Array, "*axes T N"]:
        """Entropy of c_i over all its tokens, in nats."""
        return _entropy(self.padded_attention(self.measured_classes)[1])

    @property
    def loss(self) -> Float[Array, "*axes T"]:
        """-J: mean cross-entropy over the whole source, in nats."""
        return self.loss_on(self.classes)

    def loss_on(self, classes: SequenceClasses) -> Float[Array, "*axes T"]:
        """-J on other classes, such as the windows that this run's classes were pooled from.

        Raises:
            ValueError: when they hold other tokens than this run's classes.
        """
        checks.kind("classes", classes, SequenceClasses)
        for what in ("query_tokens", "support_tokens", "next_tokens"):
            if not np.array_equal(getattr(classes, what), getattr(self.classes, what)):
                raise ValueError(f"classes must have the {what} of this run, had others.")
        J = PaddedObjective(classes)  # scales each row by itself: finite for any Z
        runs = (self.at(index) for index in np.ndindex(self.axes))
        # One compiled program for runs of one length.
        losses = [_losses(J, *map(jnp.asarray, (r.decoder, r.attention_logits))) for r in runs]
        return jnp.stack(losses).reshape(*self.axes, len(self.ts))

    def padded_attention(
        self, classes: SequenceClasses
    ) -> tuple[Int[np.ndarray, "N L"], Float[Array, "*axes T N L"]]:
        """c_i of `classes` on their own padded supports (0 where padded), behind the column of
        each entry among this run's support tokens. Errors as in `attention_on`."""
        checks.kind("classes", classes, SequenceClasses)
        rows = _locate("query", classes.query, self.query_tokens)
        present = classes.layout.mask
        ids = np.where(present, classes.ids, self.support_tokens[0])
        columns = _locate("support token", ids, self.support_tokens)
        probs = jnp.where(present, classes.support_probs, 0)
        return columns, _attention(probs, jnp.asarray(self.attention_logits), rows, columns)

    def at(self, index: Any) -> Trajectory:
        """The runs at `index` of the leading (seed and rates) axes.

        >>> import numpy as np, scan_snap_ode as sso
        >>> rates = sso.LearningRates(1.0, np.array([0.1, 1.0]))
        >>> runs = sso.integrate(sso.JointFlow(sso.syn_small()), rates, [1.0])
        >>> float(runs.at(1).rates.attention)
        1.0
        """
        lead = len(self.axes)
        index = index if isinstance(index, tuple) else (index,)
        self._check_index(index)
        rates = self.rates
        rates_index = index[lead - len(rates.shape) :]
        return Trajectory(
            classes=self.classes,
            rates=jax.tree.map(lambda x: x[rates_index], rates),
            ts=self.ts,
            attention_logits=self.attention_logits[index],
            decoder=None if self._decoder is None else self._decoder[index],
            flow=self._flow,
            status=self.status[index],
            stats={k: v[index] for k, v in self.stats.items()},
            state=[x[index] for x in self.state],
            batch_loss=None if self.batch_loss is None else self.batch_loss[index],
            about=self.about,
        )

    def _check_index(self, index: tuple[Any, ...]) -> None:
        """JAX would take the nearest run for a number out of range, and a time for a run."""
        axes = self.axes
        wrong = len(index) > len(axes)
        for i, size in zip(index, axes, strict=False):
            wrong |= isinstance(i, numbers.Integral) and not -size <= int(i) < size
        if wrong:
            raise ValueError(f"index must lie within the axes of the runs, {axes}, was {index}.")

    def followed_by(self, later: Trajectory) -> Trajectory:
        """This run and its continuation as one."""
        lead = len(self.axes)

        def join(a: Any, b: Any) -> Any:
            return jnp.concatenate([jnp.asarray(a), jnp.asarray(b)], axis=lead)

        return Trajectory(
            classes=later.classes,
            rates=later.rates,
            ts=jnp.concatenate([jnp.asarray(self.ts), jnp.asarray(later.ts)]),
            attention_logits=join(self.attention_logits, later.attention_logits),
            decoder=join(self.decoder, later.decoder),
            status=later.status,
            # Steps of a solver add up; updates and time are counted from the start.
            stats={
                k: v if k in ("updates", "end_time") else jnp.asarray(self.stats[k]) + v
                for k, v in later.stats.items()
            },
            state=later.state,
            batch_loss=(
                None if later.batch_loss is None else join(self.batch_loss, later.batch_loss)
            ),
            about=later.about,
        )

    def to_xarray(
        self, observables: Sequence[str] = ("attention", "entropy", "loss")
    ) -> xr.Dataset:
        """Labelled data: `attention_logits`, `decoder` and the named observables.

        Raises:
            ValueError: for an unknown observable, or one too large to make.
        """
        from scan_snap_ode import netcdf

        return netcdf.to_dataset(self, observables)

    def save(
        self, path: str | Path, observables: Sequence[str] = ("attention", "entropy", "loss")
    ) -> Path:
        """Write everything to a NetCDF file, whole or not at all; `load(path)` is lossless.

        Raises:
            ValueError: when the folder cannot be written to, or as in `to_xarray`.
        """
        from scan_snap_ode import netcdf

        return netcdf.save_trajectory(self, path, observables)

    def plot(self) -> matplotlib.figure.Figure:
        """Entropy, loss and the final attention of a few classes."""
        from scan_snap_ode.figures.trajectory import plot_trajectory

        return plot_trajectory(self)

    def __repr__(self) -> str:
        about = self.about
        lines = [f"Trajectory of {about.get('method', 'a run')}"]

        def line(name: str, text: str) -> None:
            lines.append(f"  {name:<17} {text}")

        shared = self.measured_classes
        line("classes", f"{shared.num_classes:,} over a vocabulary of {shared.vocab_size:,}")
        line("rates", f"decoder {_span(self.rates.decoder)}, attention "
             f"{_span(self.rates.attention)} per step")  # fmt: skip
        line("ts", f"{len(self.ts)} times{_time_span(self.ts)}")
        for name in ("attention_logits", "_decoder"):
            array = getattr(self, name)
            if array is None:
                line("decoder", "computed when asked for")
                continue
            size = array.size * array.dtype.itemsize
            line(name.lstrip("_"), f"{array.dtype} {array.shape}, {_bytes(size)}")
        for name, value in self.stats.items():
            line(name.replace("_", " "), _span(value))
        if checks.is_concrete(self.status):
            stopped = np.asarray(self.status) == Status.EVENT
            for which, said in ((stopped, "stopped at their event"), (self.failed, "failed")):
                if np.any(which):
                    line("status", f"{np.sum(which)} of {np.size(which)} runs {said}")
        return "\n".join(lines)


@jax.jit
def _attention(probs: Array, logits: Array, rows: Array, columns: Array) -> Array:
    logits = logits[..., rows[:, None], columns]
    probs = jnp.broadcast_to(probs.astype(logits.dtype), logits.shape)
    return attention.attention(probs, logits)


_entropy = jax.jit(attention.entropy)


@eqx.filter_jit
def _decoders(flow: Flow, ts: Array, Z: Array, rates: LearningRates) -> Array:
    """Y of states that are attention logits, over the axes of the rates and times."""

    def one(Z: Array, rates: LearningRates) -> Array:
        return jax.vmap(lambda t, z: flow.readout(t, z, rates)[0])(jnp.asarray(ts), Z)

    for _ in rates.shape:
        one = jax.vmap(one)
    return one(jnp.asarray(Z), rates)


@eqx.filter_jit
def _losses(objective: PaddedObjective, Y: Any, Z: Any) -> Float[Array, " T"]:
    return lax.map(lambda state: 0 - objective.value(*state), (Y, Z))  # 0, not -0, at the end


def _locate(what: str, tokens: np.ndarray, among: np.ndarray) -> np.ndarray:
    missing = np.setdiff1d(tokens, among)
    if missing.size:
        raise ValueError(
            f"classes must hold only tokens of this run, {what} {missing[0]} is not among its "
            f"{len(among)}."
        )
    return positions(among, tokens)


def _span(value: Any) -> str:
    if not checks.is_concrete(value):
        return "traced"
    array = np.asarray(value)
    low, high = array.min(), array.max()
    if low == high:
        return f"{low:g}" if array.ndim == 0 else f"{low:g} (all {array.shape})"
    return f"{low:g} to {high:g} {array.shape}"


def _time_span(ts: Any) -> str:
    if not checks.is_concrete(ts) or len(ts) == 0:
        return ""
    return f", {float(ts[0]):g} to {float(ts[-1]):g} steps"


def _bytes(size: int) -> str:
    value, unit = float(size), "B"
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            break
        value /= 1000 if unit != "GB" else 1
    return f"{value:.3g} {unit}"
