"""Fused ops as model-local functions; mixed precision."""
