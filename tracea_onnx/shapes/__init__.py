"""Symbolic shapes, and contents of shape tensors."""
