"""`runtime.compilation=quick` reaches JAX and XLA, and leaves a user's flags alone."""

import os
import subprocess
import sys

import jaxlib.version
import pytest

PROGRAM = """
import os, jax
from fuprune.run import machine
machine.start(compilation={compilation!r}, compilation_cache="", devices=1)
flags = [f for f in os.environ["XLA_FLAGS"].split() if "fusion_emitters" in f]
print(jax.config.read("jax_disable_most_optimizations"), *flags)
print(float(jax.jit(lambda x: x + 1)(1.0)))
"""
FLAG = "--xla_cpu_use_fusion_emitters"


@pytest.mark.parametrize(
    ("compilation", "given", "quick", "flags"),
    [
        ("full", "", "False", ""),
        ("quick", f"{FLAG}=true", "True", f"{FLAG}=true"),
    ],
)
def test_a_run_compiles_as_it_was_told(compilation, given, quick, flags):
    environment = {k: v for k, v in os.environ.items() if "OPTIMIZATIONS" not in k}
    output = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(compilation=compilation)],
        env=environment | {"XLA_FLAGS": given, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    if not jaxlib.version.__version__.startswith("0.10."):
        flags = given
    assert output[-2].split() == [quick, *flags.split()]
    assert output[-1] == "2.0"
