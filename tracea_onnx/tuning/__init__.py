"""Finds the fastest kernels of a model by measuring."""
