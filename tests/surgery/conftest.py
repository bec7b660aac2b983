import jax
import pytest


@pytest.fixture
def compiled_quickly():
    """Compilation without LLVM's passes, in the slow suite as well.

    Hundreds of programs run a step or two each: compiling them is all their time.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
