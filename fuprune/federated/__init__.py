"""Federated training: client programs, cohort backends, server algorithms, loops."""
