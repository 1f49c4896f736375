"""What a run costs, before it begins: memory, time, and how far the two reach."""
