"""Products by asynchronous copies several stages deep (cp.async) and mma.sync, FFMA or 3xTF32."""
