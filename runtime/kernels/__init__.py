"""Kernels for the CPU: what compiles them, and what they share."""
