"""Compares two models, and finds the fusion at fault."""
