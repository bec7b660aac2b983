"""Settings that every test shares; they must stand before JAX is imported."""

import importlib.metadata
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Three quarters of the suite's time is compilation. LLVM's optimisation passes change
# how fast a program runs and not what it means: the default suite leaves them out, the
# slow one (`make test-slow`) sets this to 0 and compiles as users do.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# The same holds for XLA's fusion emitters, which take twice as long to compile as the
# ones before them. A version that does not know the flag would end the process.
if os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] == "1":
    if importlib.metadata.version("jaxlib").startswith("0.10."):
        flags = os.environ.get("XLA_FLAGS", "")
        os.environ["XLA_FLAGS"] = f"{flags} --xla_cpu_use_fusion_emitters=false".strip()
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
