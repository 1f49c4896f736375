"""The command ``python -m data.pack``: folders of images into record and verification sets."""
