"""What kernels take: one model for all, and the efficiencies of each on a device."""
