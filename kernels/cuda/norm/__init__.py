"""Normalisations along an axis."""
