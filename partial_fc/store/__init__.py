"""Class centers and their optimizer's states in files on a disk, of which a step reads its rows."""
