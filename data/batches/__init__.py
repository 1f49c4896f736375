"""Batches: the loader, its threads, and which part of an epoch each rank reads."""
