"""The forms of a graph that oneDNN computes fast on a CPU: to train, and for inference alone."""
