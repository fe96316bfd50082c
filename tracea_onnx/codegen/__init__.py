"""What a backend is, what lowering asks of it, and how a kernel is chosen."""
