"""From SGD to the closed form, one assumption a step, and what each step costs."""

from scan_snap_ode.budget.budget import ErrorBudget, Step
from scan_snap_ode.budget.run import error_budget

__all__ = ["ErrorBudget", "Step", "error_budget"]
