"""Federated learning in JAX that forgets a class on request, fast, and proves it.

The method is that of Wang, Guo, Xie and Qi, *Federated Unlearning via
Class-Discriminative Pruning*.
"""

__version__ = "0.1.0"
