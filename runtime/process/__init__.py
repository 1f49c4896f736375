"""Safe output on a terminal, and one line for a mapped file that was cut off."""
