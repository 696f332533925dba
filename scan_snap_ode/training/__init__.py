"""Discrete training of the same model."""
