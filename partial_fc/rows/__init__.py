"""The rows of class centers in the memory of a host or a device, or on a disk; their passes."""
