"""The training dynamics of self-attention: the gradient flows of *Scan and Snap* (Tian et al.,
NeurIPS 2023), SGD on real tokens, and what each assumption costs."""

import jax

from scan_snap_ode.budget import ErrorBudget, error_budget
from scan_snap_ode.closed_form import closed_form
from scan_snap_ode.flows.adiabatic import AdiabaticFlow
from scan_snap_ode.flows.common_token import CommonTokenFlow
from scan_snap_ode.flows.finite_context import FiniteContext
from scan_snap_ode.flows.finite_step import FiniteStep
from scan_snap_ode.flows.heavy_ball import HeavyBall
from scan_snap_ode.flows.joint import JointFlow
from scan_snap_ode.flows.modified import ModifiedJointFlow
from scan_snap_ode.flows.slow_attention import SlowAttentionFlow
from scan_snap_ode.integrate import SolveError, integrate
from scan_snap_ode.netcdf import load
from scan_snap_ode.problem.assumptions import Assumptions
from scan_snap_ode.problem.classes import SequenceClasses
from scan_snap_ode.problem.synthetic import single_common_token, syn_medium, syn_small
from scan_snap_ode.rates import LearningRates
from scan_snap_ode.snap import Snap, SnapTimes, snap_times
from scan_snap_ode.streams import TokenStream, Windows, load_corpus, windows
from scan_snap_ode.theory.decoder_clock import decoder_clock, transition_times
from scan_snap_ode.theory.growth import growth_bound
from scan_snap_ode.training.batches import FixedBatches
from scan_snap_ode.training.train import train
from scan_snap_ode.trajectory import Interrupted, Status, Trajectory

__version__ = "0.1.0"


def enable_double_precision() -> None:
    """Make 64-bit floating point JAX's default; call it before making classes.

    Without it JAX computes in single precision, which is what TPUs have.
    """
    jax.config.update("jax_enable_x64", True)


__all__ = [
    "AdiabaticFlow",
    "Assumptions",
    "CommonTokenFlow",
    "ErrorBudget",
    "FiniteContext",
    "FiniteStep",
    "FixedBatches",
    "HeavyBall",
    "Interrupted",
    "JointFlow",
    "LearningRates",
    "ModifiedJointFlow",
    "SequenceClasses",
    "SlowAttentionFlow",
    "Snap",
    "SnapTimes",
    "SolveError",
    "Status",
    "TokenStream",
    "Trajectory",
    "Windows",
    "closed_form",
    "decoder_clock",
    "enable_double_precision",
    "error_budget",
    "growth_bound",
    "integrate",
    "load",
    "load_corpus",
    "single_common_token",
    "snap_times",
    "syn_medium",
    "syn_small",
    "train",
    "transition_times",
    "windows",
]
