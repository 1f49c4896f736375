"""The checks of ``python -m runtime.gpu_check``; they need all rooms, so they are up here."""
