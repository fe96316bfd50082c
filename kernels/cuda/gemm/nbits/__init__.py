"""GEMMs with weights of 2, 4 or 8 bits."""
