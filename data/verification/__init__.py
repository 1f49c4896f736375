"""Verification sets: pairs of images and whether they show the same person."""
