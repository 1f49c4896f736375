"""Safe output on a terminal, and ports that only this host reaches."""
