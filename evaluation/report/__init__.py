"""The report of a run, one HTML file without scripts, made from what the run has written."""
