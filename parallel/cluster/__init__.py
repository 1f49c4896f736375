"""The machines of a job and the files that describe them: hosts, groups, data_sharding."""
