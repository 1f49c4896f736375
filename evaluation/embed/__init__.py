"""Embeddings of images as files: ``python -m evaluation.embed``."""
