"""Checkpoints: files, writing, reading; the command ``python -m training.checkpoint``."""
