"""`optimize` from end to end."""
