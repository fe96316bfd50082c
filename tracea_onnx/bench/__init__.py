"""A model beside its peers: every result compared, then times, memory and a plot."""
