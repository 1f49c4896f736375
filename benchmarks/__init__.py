"""Measurements of the speed of the toolkit's parts and of their alternatives."""
