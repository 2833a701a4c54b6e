"""Tokens in, checkpoint out: data preparation, batches, optimizers and the training loop."""
