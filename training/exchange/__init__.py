"""How gradients are exchanged: by Horovod, or over parameter servers."""
