"""Cleaning a set of faces with a trained network: ``python -m data.clean``."""
