"""One spelling of what exporters spell in several ways."""
