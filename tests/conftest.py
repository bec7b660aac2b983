"""Settings that every test shares; they must stand before JAX is imported."""

import importlib.metadata
import os
import pathlib

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Three quarters of the suite's time is compilation. LLVM's optimisation passes change
# how fast a program runs and not what it means: the default suite leaves them out, the
# slow one (`make test-slow`) sets this to 0 and compiles as users do.
QUICK_COMPILATION = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
# The same holds for XLA's fusion emitters, which take twice as long to compile as the
# ones before them. A version that does not know the flag would end the process.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    given = os.environ.get("XLA_FLAGS", "")
    flags = f"{given} --xla_cpu_use_fusion_emitters=false".strip()
    QUICK_COMPILATION["XLA_FLAGS"] = flags
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
def quick_compilation(monkeypatch) -> None:
    """Processes that a test starts compile as the default suite does."""
    for name, value in QUICK_COMPILATION.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def repository() -> pathlib.Path:
    """The root of the checkout."""
    return pathlib.Path(__file__).parents[1]
