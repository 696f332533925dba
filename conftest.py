"""Shared by all tests: strict JAX, double precision, checked shapes, examples that run."""

import os
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE

import jax
import matplotlib
import pytest
from jaxtyping import install_import_hook
from sybil import Sybil
from sybil.parsers.markdown import PythonCodeBlockParser, SkipParser
from sybil.parsers.rest import DocTestParser

# Tests compile thousands of small programs, once each: compiled quickly, a third of the time.
# Commands that they start inherit it; `XLA_FLAGS= pytest` tests what users run, as .ci/run does.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0")
matplotlib.use("agg")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# The shapes of the formulas are checked while the tests run; public functions check their arguments
# themselves, and with their own words.
_FORMULAS = (
    "theory.attention",
    "flows.objective",
    "measures",
    "problem.initial",
    "training.pairwise",
)
install_import_hook([f"scan_snap_ode.{name}" for name in _FORMULAS], "beartype.beartype")

_FLAGS = ELLIPSIS | NORMALIZE_WHITESPACE


def _in_empty_folder(namespace):
    """Examples of a page write nowhere else; WikiText comes from its variable, not from there."""
    import tempfile

    namespace["_folder"] = tempfile.TemporaryDirectory()
    namespace["_home"] = os.getcwd()
    os.chdir(namespace["_folder"].name)


def _back(namespace):
    os.chdir(namespace["_home"])
    namespace["_folder"].cleanup()


pytest_collect_file = (
    Sybil(
        parsers=[PythonCodeBlockParser(doctest_optionflags=_FLAGS), SkipParser()],
        patterns=["README.md", "docs/*.md"],
        setup=_in_empty_folder,
        teardown=_back,
    )
    + Sybil(parsers=[DocTestParser(_FLAGS)], patterns=["scan_snap_ode/**/*.py"])
).pytest()


@pytest.fixture
def single_precision():
    """JAX as it is out of the box."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)


@pytest.fixture
def usual_promotion():
    """Optax's moments rely on JAX's usual promotion of types."""
    with jax.numpy_dtype_promotion("standard"):
        yield
