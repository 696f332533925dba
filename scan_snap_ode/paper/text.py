"""Figures 7 and 10: attention of a Transformer that learns real text."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import equinox as eqx
import jax
import jax.numpy as jnp
import matplotlib.figure
import numpy as np
from jaxtyping import Array, Float
from matplotlib.colors import PowerNorm
from numpy.typing import NDArray

from scan_snap_ode.figures import style
from scan_snap_ode.paper.figure import Agreement, PaperFigure
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.streams.choices import UNK
from scan_snap_ode.streams.corpora import TokenStream, load_corpus
from scan_snap_ode.streams.windows import cut_vocabulary
from scan_snap_ode.theory.attention import entropy
from scan_snap_ode.training.language_model import (
    LanguageModelRun,
    Measures,
    stream_columns,
    train_language_model,
)
from scan_snap_ode.training.transformer import Architecture, Transformer

if TYPE_CHECKING:
    import xarray as xr

_WIKITEXT = ("wikitext-2", "wikitext-103")


@dataclass(frozen=True)
class Text:
    """A text to train on, and one to look at, in the same vocabulary.

    Attributes:
        train: (n,) token ids.
        valid: (n',) token ids.
        vocabulary: the words.
        name: of the text, and the md5 of what was read.
    """

    train: NDArray[np.int32]
    valid: NDArray[np.int32]
    vocabulary: tuple[str, ...]
    name: str


@lru_cache(maxsize=1)
def load_text(corpus: str, folder: Path | None, vocab_size: int | None) -> Text:
    """The training and the validation part of WikiText; of any other text the first nine tenths
    and the last. `vocab_size` words stay, the most frequent, and the rest become <unk>."""
    train = load_corpus(corpus, "train", folder=folder)
    if corpus in _WIKITEXT:
        valid = load_corpus(corpus, "valid", folder=folder)
    else:
        first = len(train) * 9 // 10
        train, valid = (
            TokenStream(ids, train.vocabulary, train.name, train.md5)
            for ids in np.split(train.ids, [max(first, 1)])
        )
    ids, words = cut_vocabulary(train, vocab_size)
    held_out = [valid.vocabulary[i] for i in valid.ids]
    if UNK not in words and not set(held_out) <= set(words):
        words = (*words, UNK)
    number = {word: k for k, word in enumerate(words)}
    of_valid = np.array([number.get(word, number.get(UNK, 0)) for word in held_out], np.int32)
    return Text(ids, of_valid, words, f"{train.name} {train.md5} {valid.md5}")


@dataclass(frozen=True)
class _TextFigure(PaperFigure):
    """A Transformer of width 200 with one head, trained on WikiText-2 by plain SGD."""

    precision = "single"
    corpus: str = "wikitext-2"
    folder: Path | None = field(default=None, repr=False)
    vocab_size: int | None = None
    width: int = 200
    num_heads: int = 1
    ffn_width: int = 200
    dropout: float = 0.3
    batch_size: int = 20
    context_length: int = 35
    clip: float = 0.5
    steps: int = 1500
    record_every: int = 10
    seed: int = 0

    def _train(
        self,
        num_layers: int,
        rate: float,
        seed: int,
        measure: Callable[[Transformer], Measures],
        progress: bool,
        checkpoints: Path | None,
    ) -> LanguageModelRun:
        """One run, from the seed's initial values on, or from its checkpoint."""
        text = self._text()
        architecture = Architecture(
            len(text.vocabulary),
            self.width,
            num_layers,
            self.num_heads,
            self.ffn_width,
            self.dropout,
        )
        name = f"layers-{num_layers}-rate-{rate:g}-seed-{seed}"
        return train_language_model(
            Transformer(architecture, jax.random.key(seed, impl="threefry2x32")),
            stream_columns(text.train, self.batch_size),
            LearningRates(rate, rate),
            self.steps,
            context_length=self.context_length,
            clip=self.clip,
            seed=seed,
            record_at=[*range(0, self.steps, self.record_every), self.steps],
            measure=measure,
            progress=progress and name,
            checkpoint=checkpoints and checkpoints / f"figure_{self.number}-{name}.npz",
            setting={"text": text.name},
        )

    def prepare(self) -> None:
        self._text()

    def _text(self) -> Text:
        text = load_text(self.corpus, self.folder, self.vocab_size)
        held, needed = len(text.valid), self.context_length
        if held < needed or len(text.train) < self.batch_size * (needed + 1):
            raise ValueError(
                f"corpus must hold {self.batch_size} times {needed + 1} tokens to train on and "
                f"{needed} beside them, had {len(text.train)} and {held}."
            )
        return text


_CHOSEN = (
    "Not stated in what we hold of the paper, and chosen: initial values, post-norm layers with "
    "ReLU, an embedding scaled by √d and sinusoidal positions, as in PyTorch's tutorial of "
    "language modelling with nn.Transformer, whose other settings the paper shares. Its words are "
    "not: WikiText's own are taken, with <eos>, as everywhere here.",
    "One learning rate for all parameters.",
)


@dataclass(frozen=True)
class TextAttention(_TextFigure):
    """Figure 7."""

    number = 7
    title = "the lowest layer's attention on a fixed sequence of WikiText-2 over training"
    minutes = 17
    chosen = (
        *_CHOSEN,
        "The fixed sequence, which the paper does not name: the first 35 tokens of the validation "
        "split. Attention is taken without dropout, its entropy averaged over positions. Movement "
        "is the mean total variation between records, per iteration.",
        "The paper prints no numbers for this figure: the three criteria of each depth are ours.",
    )
    layers: tuple[int, ...] = (1, 3)
    rate: float = 5.0

    @classmethod
    def fast(cls, **given: Any) -> Self:
        small = {"vocab_size": 2000, "steps": 90, "record_every": 5}
        return cls(**{**small, **given})

    @property
    def expected_minutes(self) -> float:
        return self.minutes * self.steps / 1500 * len(self.layers) / 2

    def compute(self, progress: bool, checkpoints: Path | None) -> xr.Dataset:
        import xarray as xr

        text = self._text()
        sequence = text.valid[: self.context_length]

        def measure(model: Transformer) -> Measures:
            return {"attention": np.asarray(attention_of(model, sequence))}

        runs = [
            self._train(n, self.rate, self.seed, measure, progress, checkpoints)
            for n in self.layers
        ]
        at = runs[0].recorded_at
        c = np.stack([run.measures["attention"] for run in runs]).astype(np.float64)
        moved = np.abs(np.diff(c, axis=1)).sum(-1).mean((-2, -1)) / 2 / np.diff(at)
        words = [text.vocabulary[i] for i in sequence]
        return xr.Dataset(
            {
                "attention": (("layers", "iteration", "head", "position", "seen"), c),
                "entropy": (("layers", "iteration"), _entropy(c).mean((-2, -1)),
                            {"units": "nats"}),
                "movement": (("layers", "interval"), moved, {"units": "1/iteration"}),
                "loss": (("layers", "update"), np.stack([run.loss for run in runs]),
                         {"units": "nats"}),
                "interval_end": ("interval", at[1:]),
            },
            {"layers": list(self.layers), "iteration": at, "word": ("position", words)},
        )  # fmt: skip

    def compare(self, data: xr.Dataset) -> list[Agreement]:
        rows = []
        for i, n in enumerate(self.layers):
            H, moved = data["entropy"].values[i], data["movement"].values[i]
            falls = -np.diff(np.interp(np.linspace(0, self.steps, 11), data["iteration"], H))
            falls /= self.steps / 10
            late, peak = float(moved[-max(1, len(moved) // 10) :].mean()), float(moved.max())
            fastest = float(falls.max())
            left = abs(float(falls[-1])) / fastest if fastest > 0 else np.inf
            start, end = float(H[0]), float(H[-1])
            name = f"{n} layer{'s' * (n > 1)}: "
            for what, ours, reference, share, bound, unit in (
                ("entropy at the end [nats]", end, start, end / start, 0.9, "of that at the start"),
                ("fall of entropy per iteration, last tenth", float(falls[-1]), fastest, left, 0.1,
                 "of that in its fastest tenth"),
                ("movement per iteration, last tenth", late, peak, late / peak, 0.1,
                 "of its peak"),
            ):  # fmt: skip
                rows.append(Agreement(name + what, ours, reference, share, bound, unit))
        return rows

    def draw(self, data: xr.Dataset) -> matplotlib.figure.Figure:
        at = data["iteration"].values
        wanted = np.linspace(0, self.steps, 4)
        shown = [int(np.argmin(np.abs(at - step))) for step in wanted]
        rows, count = len(self.layers), len(shown)
        figure = style.sheet(2.35 * count + 5.6, 2.6 * rows + 0.6)
        panels = figure.subplots(rows, count + 2, squeeze=False,
                                 width_ratios=[1.0] * count + [1.15, 1.15])  # fmt: skip
        c = data["attention"].values.mean(2)
        image = None
        for i, row in enumerate(panels):
            for axes, k in zip(row[:count], shown, strict=True):
                # A root, so that what is spread over many tokens can be seen at all.
                image = axes.imshow(c[i, k], cmap="cividis", norm=PowerNorm(0.5, 0, 1),
                                    interpolation="nearest")  # fmt: skip
                axes.tick_params(labelsize=8)
                if i == 0:
                    axes.set_title(f"iteration {at[k]:,}", loc="left", fontsize=10)
                if i == rows - 1:
                    axes.set_xlabel("position attended to", fontsize=9)
            n = self.layers[i]
            row[0].set_ylabel(f"{n} layer{'s' * (n > 1)}\nposition", fontsize=10)
            self._curves(row[count:], data, i)
        assert image is not None
        bar = figure.colorbar(image, ax=panels[:, :count], location="bottom", shrink=0.4, aspect=40,
                              pad=0.03)  # fmt: skip
        bar.set_label("attention $c$", fontsize=10)
        return figure

    def _curves(self, panels: Any, data: xr.Dataset, i: int) -> None:
        entropy, movement = panels
        entropy.plot(data["iteration"].values, data["entropy"].values[i], color=style.BLUE)
        entropy.set_ylabel("entropy of $c$ [nats]", fontsize=10)
        end = data["interval_end"].values
        movement.plot(end, data["movement"].values[i], color=style.VERMILION)
        movement.set_yscale("log")
        movement.set_ylabel("movement of $c$\n[total variation/iteration]", fontsize=10)
        for axes in panels:
            style.tidy(axes)
            axes.tick_params(labelsize=9)
            if i == len(self.layers) - 1:
                axes.set_xlabel("iteration", fontsize=10)


@dataclass(frozen=True)
class TextEntropy(_TextFigure):
    """Figure 10."""

    number = 10
    title = "entropy of attention on the validation split against the learning rate"
    minutes = 210
    chosen = (
        *_CHOSEN,
        "How long the paper trains for this figure we do not know: 1,500 iterations, as Figure 7. "
        "The entropy at earlier iterations is recorded too.",
        "Entropy is averaged over all positions of all windows of 35 tokens. The paper prints no "
        "numbers for this figure: that entropy falls as the rate rises is asked in standard "
        "errors.",
    )
    record_every: int = 50
    rates: tuple[float, ...] = (1.0, 2.0, 3.0, 4.0, 5.0)
    num_seeds: int = 5
    num_layers: int = 1

    @classmethod
    def fast(cls, **given: Any) -> Self:
        small = {"vocab_size": 2000, "steps": 50, "num_seeds": 2, "rates": (1.0, 3.0, 5.0)}
        return cls(**{**small, **given})

    @property
    def expected_minutes(self) -> float:
        return self.minutes * self.steps / 1500 * len(self.rates) * self.num_seeds / 25

    def compute(self, progress: bool, checkpoints: Path | None) -> xr.Dataset:
        import xarray as xr

        text, length = self._text(), self.context_length
        windows = text.valid[: len(text.valid) // length * length].reshape(-1, length)

        def measure(model: Transformer) -> Measures:
            return {"entropy": np.asarray(mean_entropy(model, windows))}

        seeds = self.seed + np.arange(self.num_seeds)
        runs = {
            (seed, rate): self._train(
                self.num_layers, rate, int(seed), measure, progress, checkpoints
            )
            for seed in seeds
            for rate in self.rates
        }
        found = [[runs[seed, rate].measures["entropy"] for seed in seeds] for rate in self.rates]
        loss = [[runs[seed, rate].loss for seed in seeds] for rate in self.rates]
        at = next(iter(runs.values())).recorded_at
        axes = ("rate", "seed")
        return xr.Dataset(
            {
                "entropy": ((*axes, "iteration"), np.array(found), {"units": "nats"}),
                "loss": ((*axes, "update"), np.array(loss), {"units": "nats"}),
                "uniform": ((), np.log(np.arange(1, length + 1)).mean(), {"units": "nats"}),
            },
            {"rate": list(self.rates), "seed": seeds, "iteration": at},
        )

    def compare(self, data: xr.Dataset) -> list[Agreement]:
        last = data["entropy"].values[:, :, -1]
        mean = last.mean(1)
        if len(mean) < 2:
            return []
        spread = last.std(1, ddof=1) if last.shape[1] > 1 else np.zeros(len(mean))
        error = np.maximum(spread / np.sqrt(last.shape[1]), np.finfo(np.float32).eps)

        def above(i: int, j: int) -> float:
            return float((mean[i] - mean[j]) / np.hypot(error[i], error[j]))

        unit = "combined standard errors above that"
        rises = [above(i + 1, i) for i in range(len(mean) - 1)]
        worst = int(np.argmax(rises))
        pairs = [
            (len(mean) - 1, 0, above(-1, 0), -3.0, unit),
            (worst + 1, worst, rises[worst], 2.0, f"{unit}, the worst of neighbours"),
        ]
        return [
            Agreement(
                f"mean entropy at η = {self.rates[i]:g} against η = {self.rates[j]:g} [nats]",
                float(mean[i]),
                float(mean[j]),
                deviation,
                bound,
                unit,
            )
            for i, j, deviation, bound, unit in pairs
        ]

    def draw(self, data: xr.Dataset) -> matplotlib.figure.Figure:
        figure = style.sheet(10, 4.4)
        left, right = figure.subplots(1, 2)
        H, rate = data["entropy"].values, data["rate"].values
        last = H[:, :, -1]
        left.plot(rate, last, ".", color=style.SKY, markersize=7)
        left.errorbar(rate, last.mean(1), yerr=last.std(1, ddof=1) if last.shape[1] > 1 else None,
                      fmt="o-", color=style.BLUE, capsize=3, markersize=5)  # fmt: skip
        left.set_xlabel("learning rate $\\eta$ [per step]", fontsize=11)
        style.tidy(left, f"After {self.steps:,} iterations, {last.shape[1]} seeds")
        for i, eta in enumerate(rate):
            right.plot(data["iteration"].values, H[i].mean(0), color=style.CYCLE[i % 6],
                       label=f"$\\eta$ = {eta:g}")  # fmt: skip
        right.axhline(float(data["uniform"]), color=style.GREY, linestyle=":", label="uniform")
        right.set_xlabel("iteration", fontsize=11)
        right.legend(fontsize=9, frameon=False)
        style.tidy(right, "Over training, mean of the seeds")
        for axes in (left, right):
            axes.set_ylabel("entropy of $c$, validation split [nats]", fontsize=11)
        return figure


@eqx.filter_jit
def attention_of(model: Transformer, tokens: NDArray[np.int32]) -> Float[Array, "H T T"]:
    """Attention of the lowest layer on one sequence."""
    return model.attention(jnp.asarray(tokens)[None])[0]


@eqx.filter_jit
def mean_entropy(model: Transformer, windows: NDArray[np.int32]) -> Float[Array, ""]:
    """Entropy in nats of the lowest layer's attention, averaged over windows, heads, positions."""

    def one(tokens: Array) -> Array:
        return jnp.mean(entropy(model.attention(tokens[None])))

    return jnp.mean(jax.lax.map(one, windows, batch_size=64))


def _entropy(c: NDArray[np.float64]) -> NDArray[np.float64]:
    return -np.sum(c * np.log(np.where(c == 0, 1, c)), axis=-1)
