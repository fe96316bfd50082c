"""What works on this machine, and what would fix the rest."""
