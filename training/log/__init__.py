"""What a run reports: lines, numbers, where time goes, and whether it advances."""
