"""Optional compiled kernels for CPU, with XLA's own operations as the fallback."""
