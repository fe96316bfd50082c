"""Graph view, symbolic dims, expressions, operator traits, contracts of rules."""
