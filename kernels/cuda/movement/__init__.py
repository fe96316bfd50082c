"""Copies, layout changes, gathers, scatters, padding and packing."""
