"""Ways to make a federated model forget classes, one file per method."""
