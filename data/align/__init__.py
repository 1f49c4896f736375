"""The command ``python -m data.align``: faces with five known or detected points, to 112 x 112."""
