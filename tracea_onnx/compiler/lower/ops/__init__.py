"""The lowering of operators, one module for each kind."""
