"""Pointwise programs."""
