"""Files, caches, and modules found by name."""
