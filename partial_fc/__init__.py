"""Partial FC: the model-parallel, sampled margin softmax. Mathematics only, no import of Horovod."""
