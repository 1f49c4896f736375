"""Files of others that can name anything to compute: networks."""
