"""Shared by all tests: strict JAX, double precision, checked shapes."""

import jax
import matplotlib
import pytest
from jaxtyping import install_import_hook

matplotlib.use("agg")
jax.config.update("jax_enable_x64", True)
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")

# The shapes of the formulas are checked while the tests run; public functions check their arguments
# themselves, and with their own words.
_FORMULAS = ("theory", "flows.objective", "measures", "problem.initial", "training.pairwise")
install_import_hook([f"scan_snap_ode.{name}" for name in _FORMULAS], "beartype.beartype")


@pytest.fixture
def single_precision():
    """JAX as it is out of the box."""
    jax.config.update("jax_enable_x64", False)
    yield
    jax.config.update("jax_enable_x64", True)
