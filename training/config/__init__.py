"""The configuration of a run: the options of the rooms and of training, put together."""
