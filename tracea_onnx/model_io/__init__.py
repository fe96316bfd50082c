"""Models and their external data, read and written."""
