"""The command ``python -m data.align``: faces with five listed points, to 112 x 112."""
