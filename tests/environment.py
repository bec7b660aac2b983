"""Variables of the environment under which programs compile quickly."""

import importlib.metadata
import os

# Three quarters of the suite's time is compilation. LLVM's optimisation passes change
# how fast a program runs and not what it means.
QUICK_COMPILATION = {"JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}
# The same holds for XLA's fusion emitters, which take twice as long to compile as the
# ones before them. A version that does not know the flag would end the process.
if importlib.metadata.version("jaxlib").startswith("0.10."):
    _FLAG = "--xla_cpu_use_fusion_emitters=false"
    _GIVEN = os.environ.get("XLA_FLAGS", "").replace(_FLAG, "")
    QUICK_COMPILATION["XLA_FLAGS"] = f"{_GIVEN} {_FLAG}".strip()
