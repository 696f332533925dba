"""Pure formulas of the paper."""
