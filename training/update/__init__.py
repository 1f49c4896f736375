"""One update: the steps, the optimizers, the loss scale, and what is counted."""
