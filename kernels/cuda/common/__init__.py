"""What kernels of several families share."""
