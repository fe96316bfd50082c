"""Reductions, running sums and top-k."""
