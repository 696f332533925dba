"""Checks of arguments: each message names the argument, what it must be and what it was."""

from __future__ import annotations

import math
import numbers
import os
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.core import Tracer
from numpy.typing import NDArray

# JAX counts steps, windows and tokens in 32-bit integers.
LARGEST = 2**31 - 1


def is_concrete(*trees: Any) -> bool:
    """True when no leaf is a tracer, so that values may be looked at."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def kind(name: str, value: Any, *kinds: type) -> None:
    """ValueError unless `value` is an instance of one of `kinds`."""
    if not isinstance(value, kinds):
        wanted = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
        raise ValueError(f"{name} must be {wanted}, was {value!r}.")


def integer(name: str, value: Any, at_least: int, at_most: int = LARGEST) -> int:
    """`value` as an int between the two, else ValueError."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or int(value) < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, was {value!r}.")
    if int(value) > at_most:
        raise ValueError(f"{name} must be an integer of at most {at_most}, was {value}.")
    return int(value)


def seed(name: str, value: Any, num_seeds: int = 1) -> int:
    """`value` as an int from which `num_seeds` distinct seeds can be counted, else ValueError."""
    # Single precision drops the upper half of a longer seed.
    return integer(name, value, 0, at_most=2**32 - num_seeds)


def within(name: str, value: Any, low: float, high: float, *, open_low: bool = False) -> None:
    """ValueError unless `value` is traced or a number in [low, high), or (low, high)."""
    if not is_concrete(value):
        return
    number = reals(name, value)
    if number.ndim or not (low < number < high or (number == low and not open_low)):
        bracket = "(" if open_low else "["
        raise ValueError(f"{name} must lie in {bracket}{low}, {high}), was {value!r}.")


def positive(name: str, value: Any, *, scalar: bool = False) -> None:
    """ValueError unless every concrete entry is finite and above zero."""
    if not is_concrete(value):
        return
    array = reals(name, value)
    if scalar and array.ndim:
        raise ValueError(f"{name} must be one number, was of shape {array.shape}.")
    if not array.size:
        raise ValueError(f"{name} must hold numbers, was empty.")
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        raise ValueError(f"{name} must be positive and finite, was {array[bad].flat[0]}.")


def at_least(name: str, value: Any, low: float) -> None:
    """ValueError unless `value` is traced or one finite number of at least `low`."""
    if not is_concrete(value):
        return
    number = reals(name, value)
    if number.ndim or not (np.isfinite(number) and number >= low):
        raise ValueError(f"{name} must be a finite number of at least {low}, was {value!r}.")


def times(name: str, value: Any) -> None:
    """ValueError unless every concrete entry is finite and not negative."""
    if not is_concrete(value):
        return
    array = reals(name, value)
    bad = ~(np.isfinite(array) & (array >= 0))
    if bad.any():
        raise ValueError(f"{name} must be finite and not negative, held {array[bad].flat[0]}.")


def rising(name: str, value: Any) -> None:
    """ValueError unless a concrete `value` is a non-empty row of strictly rising times."""
    times(name, value)
    if not is_concrete(value):
        return
    array = reals(name, value)
    if array.ndim != 1 or not array.size or (np.diff(array) <= 0).any():
        raise ValueError(
            f"{name} must be a non-empty 1-D array, strictly increasing, was {value!r:.200}."
        )


def reals(name: str, value: Any) -> NDArray[Any]:
    """A concrete `value` as an array of integers or floats, else ValueError."""
    array = _rectangular(name, value)
    if array.dtype.kind not in "iuf":
        raise ValueError(f"{name} must be real numbers, was {_shown(value, array)}.")
    return array


def token_ids(name: str, value: Any, ndim: int) -> NDArray[np.int32]:
    """A concrete `value` as an array of 32-bit integers with that many axes, else ValueError."""
    if not is_concrete(value):
        raise ValueError(f"{name} must be concrete token ids, was traced by a transformation.")
    array = _rectangular(name, value)
    if array.ndim != ndim:
        raise ValueError(f"{name} must be a {ndim}-D array, was of shape {array.shape}.")
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} must be integer token ids, was {_shown(value, array)}.")
    if array.size and (array.min() < -LARGEST or array.max() > LARGEST):
        raise ValueError(f"{name} must fit 32-bit integers, went up to {array.max()}.")
    return array.astype(np.int32)


def file(name: str, value: Any) -> Path:
    """`value` as a path, else ValueError."""
    if not isinstance(value, (str, os.PathLike)):
        raise ValueError(f"{name} must be a path, was {value!r}.")
    return Path(value)


def dense_size(
    name: str, *shape: int, limit: int = 2**27, instead: str = "Use the padded form instead."
) -> None:
    """ValueError when a dense view of this shape would hold more than `limit` numbers."""
    size = math.prod(shape)
    if size > limit:
        dims = " x ".join(f"{n:,}" for n in shape)
        raise ValueError(
            f"{name} would be a dense {dims} array ({size:,} numbers); at most {limit:,} are made. "
            f"{instead}"
        )


def _rectangular(name: str, value: Any) -> NDArray[Any]:
    try:
        return np.asarray(value)
    except ValueError as error:
        raise ValueError(f"{name} must be a rectangular array, was ragged.") from error


def _shown(value: Any, array: NDArray[Any]) -> str:
    return f"of type {array.dtype}" if array.ndim else repr(value)
