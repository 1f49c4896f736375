"""Labeled images for classifiers, decoding, and random changes."""
