"""Why chains are fused or not, as text, JSON and HTML."""
