"""The convolutional networks of the paper, whole or with channels removed."""
