"""Runs the rules; readings of chains that rules share."""
