"""What tests of the command share."""

import json
import shlex
from pathlib import Path

import jax
import numpy as np

WORDS = ["the", "of", "naïve", "数学", "cat", "dog", "sat", "mat"]
PNG = b"\x89PNG\r\n\x1a\n"
# Small windows of the text below, a few classes.
TEXT = shlex.split("text.txt --context-length 6 --queries 2 --next-tokens 3 --classes 4")
TINY = shlex.split("--steps 5 --seeds 2 --batch-size 4")


def tree():
    """Every path below the working directory."""
    return sorted(str(path) for path in Path().rglob("*"))


def read(path):
    return json.loads(Path(path).read_text("utf-8"))


def assert_same(a, b):
    """Equal runs, to the last bit."""
    assert jax.tree.structure(a) == jax.tree.structure(b)
    for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True):
        assert x.dtype == y.dtype
        assert np.array_equal(x, y, equal_nan=True)
