"""The command ``python -m data.inspect``: what is in a set."""
