"""Record sets: files, sets, the index beside them, and the writer."""
