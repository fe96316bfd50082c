"""Attention of few query rows (decoding)."""
