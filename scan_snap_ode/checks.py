"""Checks of arguments: each message names the argument, what it must be and what it was."""

from __future__ import annotations

import math
import numbers
from typing import Any

import jax
import numpy as np
from jax.core import Tracer


def is_concrete(*trees: Any) -> bool:
    """True when no leaf is a tracer, so that values may be looked at."""
    return not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(trees))


def kind(name: str, value: Any, *kinds: type) -> None:
    """ValueError unless `value` is an instance of one of `kinds`."""
    if not isinstance(value, kinds):
        wanted = " or ".join("None" if k is type(None) else k.__name__ for k in kinds)
        raise ValueError(f"{name} must be {wanted}, was {value!r}.")


def integer(name: str, value: Any, at_least: int) -> int:
    """`value` as an int of at least `at_least`, else ValueError."""
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or int(value) < at_least:
        raise ValueError(f"{name} must be an integer of at least {at_least}, was {value!r}.")
    return int(value)


def positive(name: str, value: Any) -> None:
    """ValueError unless every concrete entry is finite and above zero."""
    if not is_concrete(value):
        return
    array = np.asarray(value)
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise ValueError(f"{name} must be a positive real number, was {value!r}.")
    bad = ~(np.isfinite(array) & (array > 0))
    if bad.any():
        raise ValueError(f"{name} must be positive and finite, was {array[bad].flat[0]}.")


def dense_size(name: str, *shape: int, limit: int = 2**27) -> None:
    """ValueError when a dense view of this shape would hold more than `limit` numbers."""
    size = math.prod(shape)
    if size > limit:
        dims = " x ".join(f"{n:,}" for n in shape)
        raise ValueError(
            f"{name} would be a dense {dims} array ({size:,} numbers); at most {limit:,} are made. "
            "Use the padded form instead."
        )
