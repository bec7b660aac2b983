"""Convolutions on several CPU devices at once, in a process that has them."""

import os
import pathlib
import subprocess
import sys

import pytest

from fuprune.kernels import convolution, library

PROGRAM = """
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, PartitionSpec as P

jax.config.update("jax_num_cpu_devices", 4)
from fuprune.kernels import convolution, library

assert library.available()
NUMBERS = ("NHWC", "HWIO", "NHWC")
data = jax.random.normal(jax.random.key(0), (8, 4, 8, 8, 3))
kernel = jax.random.normal(jax.random.key(1), (3, 3, 3, 8)) / 5


def make_local(name):
    convolve = convolution.implementation(name)

    def loss(kernel, batch):
        output = convolve(batch, kernel, (1, 1), "SAME", dimension_numbers=NUMBERS)
        return jnp.mean(jnp.sin(output))

    def client(kernel, batch):
        def step(_, kernel):
            return kernel - jax.grad(loss)(kernel, batch)

        return jax.lax.fori_loop(0, 5, step, kernel)

    return lambda kernel, data: jax.lax.map(lambda batch: client(kernel, batch), data)


expected = jax.jit(make_local("xla"))(kernel, data)
mesh = jax.make_mesh((4,), ("clients",), axis_types=(AxisType.Auto,))
for check_vma in (True, False):

    def local(kernel, data):
        if check_vma:  # a client's gradient is its own, not the sum over clients
            kernel = jax.lax.pcast(kernel, "clients", to="varying")
        return make_local("onednn")(kernel, data)

    sharded = jax.jit(
        jax.shard_map(
            local,
            mesh=mesh,
            in_specs=(P(), P("clients")),
            out_specs=P("clients"),
            check_vma=check_vma,
        )
    )
    for _ in range(10):
        actual = sharded(kernel, data)
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-6)

# A replicated kernel meets varying data: its gradient is summed over the mesh.
def total(convolve):
    def loss(kernel, data):
        output = convolve(data, kernel, (1, 1), "SAME", dimension_numbers=NUMBERS)
        return jax.lax.psum(jnp.sum(jnp.sin(output)), "clients")

    return jax.jit(
        jax.shard_map(
            lambda kernel, data: jax.grad(loss)(kernel, data.reshape(-1, 8, 8, 3)),
            mesh=mesh,
            in_specs=(P(), P("clients")),
            out_specs=P(),
        )
    )(kernel, data)


np.testing.assert_allclose(
    total(convolution.implementation("onednn")),
    total(convolution.implementation("xla")),
    rtol=1e-4,
    atol=1e-4,
)

print("done")
"""


@pytest.mark.skipif(not library.available(), reason=str(library.why_not()))
def test_several_devices_at_once_equal_one():
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        capture_output=True,
        text=True,
        env=os.environ
        | {"PYTHONPATH": str(pathlib.Path(convolution.__file__).parents[2])},
    )
    assert result.stdout == "done\n", result.stderr
