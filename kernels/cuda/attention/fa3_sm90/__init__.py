"""Warp-specialised attention (FlashAttention-3) on Hopper."""
