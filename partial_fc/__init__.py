"""Partial FC: the model-parallel, sampled margin softmax; mathematics, no import of Horovod."""
