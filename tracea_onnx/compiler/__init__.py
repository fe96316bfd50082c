"""The partition compiler: from a graph to Plans."""
