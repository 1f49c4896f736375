"""The ranks of a run and what they say to each other."""
