"""Products of which one operand has few rows."""
