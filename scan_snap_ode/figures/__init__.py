"""Figures. Each function returns a matplotlib Figure; `style.save` writes it."""
