"""Cost model of kernels, with measured efficiencies of each kernel on each device."""
