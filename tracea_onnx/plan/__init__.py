"""Kernel families, Plans, and the bytes that a launch may touch."""
