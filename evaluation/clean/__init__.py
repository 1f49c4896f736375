"""Cleaning a set of faces with a trained network: ``python -m evaluation.clean``."""
