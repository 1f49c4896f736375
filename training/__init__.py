"""How a run is described, scheduled, driven and reported; the nouns that ``train.py`` composes."""
