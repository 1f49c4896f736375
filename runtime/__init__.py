"""Base of every program here: errors, the environment, and the one import of MXNet."""
