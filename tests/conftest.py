"""Settings that every test shares; they must stand before JAX is imported."""

import os
import pathlib

from tests.environment import QUICK_COMPILATION

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The default suite compiles quickly; the slow one (`make test-slow`) sets this to 0 and
# compiles as users do.
if os.environ.get("JAX_DISABLE_MOST_OPTIMIZATIONS", "1") == "1":
    os.environ.update(QUICK_COMPILATION)
# Tests, workers and later runs share compiled programs.
os.environ.setdefault(
    "JAX_COMPILATION_CACHE_DIR",
    str(pathlib.Path(__file__).parents[1] / ".cache" / "jax"),
)
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.05")

import hypothesis
import pytest

# The same examples every time: a failure seen once is seen by everybody.
hypothesis.settings.register_profile(
    "fuprune", deadline=None, derandomize=True, max_examples=25, database=None
)
hypothesis.settings.load_profile("fuprune")


@pytest.fixture
def repository() -> pathlib.Path:
    """The root of the checkout."""
    return pathlib.Path(__file__).parents[1]
