"""The pictures of README and documents, drawn from what runs and benchmarks have written."""
