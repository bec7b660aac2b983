"""Federated learning in JAX that forgets a class on request, and shows the evidence.

The method is that of Wang, Guo, Xie and Qi, *Federated Unlearning via
Class-Discriminative Pruning*. What is public here are functions of arrays, keys and
Flax modules, and the types that they take and return; configs, clocks and progress
live in `fuprune.run` and are not needed by an embedding program.

The names are in `__init__.pyi` and loaded on first use.
"""

import lazy_loader

__version__ = "0.2.0"

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
