"""A causal Transformer: the paper's model of text (Figs. 7 and 10), which stripped of positions,
residuals and feed-forward layers is the pairwise model (Y, Z) again."""

from __future__ import annotations

import math
from dataclasses import dataclass

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from scan_snap_ode import checks


@dataclass(frozen=True)
class Architecture:
    """What a Transformer is made of. The defaults are the paper's for Figure 7.

    Args:
        vocab_size: M, tokens of the embedding and of the decoder.
        width: d of the embedding and of every layer.
        num_layers: how many layers of attention.
        num_heads: heads of each, a divisor of `width`.
        ffn_width: hidden units of the feed-forward part of a layer, 0 = none.
        dropout: share of units dropped while training.
        positions: whether sinusoidal positions are added to the embedding.
        residual: whether a layer adds to its input.
        layer_norm: whether a part of a layer ends in LayerNorm; else in the l2 norm, the paper's
            idealisation.
        sees_itself: whether a position attends to itself; the paper's theory masks the query.
        biases: whether linear maps have them.

    Raises:
        ValueError: for a number that is not as above.
    """

    vocab_size: int
    width: int = 200
    num_layers: int = 1
    num_heads: int = 1
    ffn_width: int = 200
    dropout: float = 0.3
    positions: bool = True
    residual: bool = True
    layer_norm: bool = True
    sees_itself: bool = True
    biases: bool = True

    def __post_init__(self) -> None:
        checks.integer("vocab_size", self.vocab_size, 2)
        for name in ("width", "num_layers", "num_heads"):
            checks.integer(name, getattr(self, name), 1)
        checks.integer("ffn_width", self.ffn_width, 0)
        checks.within("dropout", self.dropout, 0, 1)
        if self.width % self.num_heads:
            raise ValueError(
                f"num_heads must divide the width, {self.width}, was {self.num_heads}."
            )


class Affine(eqx.Module):
    """x ↦ x A + b on the last axis."""

    weight: Float[Array, "d_in d_out"]
    bias: Float[Array, " d_out"] | None

    def __call__(self, x: Float[Array, "*axes d_in"]) -> Float[Array, "*axes d_out"]:
        y = x @ self.weight
        return y if self.bias is None else y + self.bias.reshape((1,) * (y.ndim - 1) + (-1,))


class Layer(eqx.Module):
    """Causal attention, then a feed-forward part, each normalised at its end."""

    query: Affine
    key: Affine
    value: Affine
    output: Affine
    hidden: tuple[Affine, Affine] | None
    norms: tuple[eqx.nn.LayerNorm, ...]
    shape: Architecture = eqx.field(static=True)

    def attention(self, x: Float[Array, "B T d"]) -> Float[Array, "B H T T"]:
        """c of each position (third axis) over the positions before it, which sum to 1."""
        heads, size = self.shape.num_heads, self.shape.width // self.shape.num_heads
        q, k = (part(x).reshape(*x.shape[:2], heads, size) for part in (self.query, self.key))
        logits = jnp.einsum("bthd,bshd->bhts", q, k) / math.sqrt(size)
        length = x.shape[1]
        seen = np.tri(length, k=0 if self.shape.sees_itself else -1, dtype=bool)[None, None]
        # A position with nothing before it attends to nothing, which keeps NaN out of gradients.
        return jnp.where(seen, jax.nn.softmax(jnp.where(seen, logits, -1e30), axis=-1), 0)

    def __call__(self, x: Float[Array, "B T d"], key: Array | None = None) -> Float[Array, "B T d"]:
        keys = [None] * 4 if key is None else list(jax.random.split(key, 4))
        c = self._drop(self.attention(x), keys[0])
        values = self.value(x).reshape(*x.shape[:2], self.shape.num_heads, -1)
        mixed = jnp.einsum("bhts,bshd->bthd", c, values).reshape(x.shape)
        x = self._end(x, self._drop(self.output(mixed), keys[1]), 0)
        if self.hidden is None:
            return x
        units = self._drop(jax.nn.relu(self.hidden[0](x)), keys[2])
        return self._end(x, self._drop(self.hidden[1](units), keys[3]), 1)

    def _drop(self, x: Array, key: Array | None) -> Array:
        return eqx.nn.Dropout(self.shape.dropout, inference=key is None)(x, key=key)

    def _end(self, x: Array, update: Array, part: int) -> Array:
        x = x + update if self.shape.residual else update
        if self.shape.layer_norm:
            return jax.vmap(jax.vmap(self.norms[part]))(x)
        square = jnp.sum(x**2, axis=-1, keepdims=True)
        return x * jax.lax.rsqrt(jnp.where(square == 0, 1, square))


class Transformer(eqx.Module):
    """A language model: token embedding, layers, and a linear decoder over all tokens.

    Layers are post-norm with ReLU, the embedding is scaled by √d, and initial values are those of
    PyTorch's layers and of its tutorial of language modelling, whose other settings the paper has:
    embedding and decoder uniform in ±0.1, queries, keys and values by Glorot's rule over the three
    together, the rest uniform in ±1/√fan-in, biases of attention and decoder 0; all layers start
    alike, as nn.TransformerEncoder copies one.

    Args:
        architecture: what it is made of.
        key: of the random initial values.
    """

    embedding: Float[Array, "M d"]
    layers: tuple[Layer, ...]
    decoder: Affine
    architecture: Architecture = eqx.field(static=True)

    def __init__(self, architecture: Architecture, key: Array):
        checks.kind("architecture", architecture, Architecture)
        a = self.architecture = architecture
        of_embedding, of_layers, of_decoder = jax.random.split(key, 3)
        self.embedding = _uniform(of_embedding, (a.vocab_size, a.width), 0.1)
        self.layers = tuple(_layer(a, of_layers) for _ in range(a.num_layers))
        decoder = _uniform(of_decoder, (a.width, a.vocab_size), 0.1)
        self.decoder = Affine(decoder, _zeros(a, a.vocab_size))

    def embed(self, tokens: Int[Array, "B T"], key: Array | None = None) -> Float[Array, "B T d"]:
        """What the lowest layer sees."""
        x = self.embedding[tokens] * math.sqrt(self.architecture.width)
        if self.architecture.positions:
            x = x + jnp.asarray(_sinusoids(*x.shape[1:]), x.dtype)[None]
        dropout = eqx.nn.Dropout(self.architecture.dropout, inference=key is None)
        return dropout(x, key=key)

    def attention(self, tokens: Int[Array, "B T"]) -> Float[Array, "B H T T"]:
        """Attention of the lowest layer, without dropout."""
        return self.layers[0].attention(self.embed(tokens))

    def __call__(
        self, tokens: Int[Array, "B T"], key: Array | None = None
    ) -> Float[Array, "B T d"]:
        """What the decoder sees at each position; with a `key` some units are dropped."""
        keys = [None] * (1 + len(self.layers))
        if key is not None and self.architecture.dropout:
            keys = list(jax.random.split(key, 1 + len(self.layers)))
        x = self.embed(tokens, keys[0])
        for layer, of_layer in zip(self.layers, keys[1:], strict=True):
            x = layer(x, of_layer)
        return x

    def loss(
        self, tokens: Int[Array, "B T"], targets: Int[Array, "B n"], key: Array | None = None
    ) -> Float[Array, ""]:
        """Mean cross-entropy in nats of the tokens that follow the last n positions."""
        x = self(tokens, key)[:, -targets.shape[1] :]
        scores = self.decoder(x).reshape(-1, self.architecture.vocab_size)
        chosen = jnp.take_along_axis(scores, targets.reshape(-1, 1), axis=1)[:, 0]
        return jnp.mean(jax.nn.logsumexp(scores, axis=1) - chosen)


def _layer(a: Architecture, key: Array) -> Layer:
    keys = jax.random.split(key, 8)
    glorot, fan_in = math.sqrt(6 / (4 * a.width)), 1 / math.sqrt(a.width)

    def square(key: Array, bound: float) -> Affine:
        return Affine(_uniform(key, (a.width, a.width), bound), _zeros(a, a.width))

    def hidden(keys: Array, d_in: int, d_out: int) -> Affine:
        bound = 1 / math.sqrt(d_in)
        bias = _uniform(keys[1], (d_out,), bound) if a.biases else None
        return Affine(_uniform(keys[0], (d_in, d_out), bound), bias)

    query, key_map, value = (square(k, glorot) for k in keys[:3])
    return Layer(
        query,
        key_map,
        value,
        square(keys[3], fan_in),
        (hidden(keys[4:6], a.width, a.ffn_width), hidden(keys[6:], a.ffn_width, a.width))
        if a.ffn_width
        else None,
        tuple(
            eqx.nn.LayerNorm(a.width, dtype=jnp.float32)
            for _ in range(a.layer_norm * (1 + bool(a.ffn_width)))
        ),
        a,
    )


def _uniform(key: Array, shape: tuple[int, ...], bound: float) -> Array:
    # In single precision, which it is trained in too: the authors' PyTorch and any accelerator.
    return jax.random.uniform(key, shape, jnp.float32, -bound, bound)


def _zeros(a: Architecture, size: int) -> Array | None:
    return jnp.zeros(size, jnp.float32) if a.biases else None


def _sinusoids(length: int, width: int) -> np.ndarray:
    """(length, width) sines and cosines of positions, wavelengths from 2π to 10,000·2π."""
    angles = np.arange(length)[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    both = np.stack([np.sin(angles), np.cos(angles)], axis=-1)
    return both.reshape(length, -1)[:, :width]
