"""What a run can be told: the options of the rooms, with those of training itself, put together."""
