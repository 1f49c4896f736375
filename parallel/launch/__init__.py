"""The command ``python -m parallel.launch``: the processes of a job with parameter servers."""
