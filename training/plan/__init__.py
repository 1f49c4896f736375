"""Plans of runs before they begin: memory of a rank, and the bytes of each collective."""
