"""How long a training step takes before and after a cut, of two saved models.

python benchmarks/cut_step.py BEFORE AFTER --factory docs.mobilenet:make_model
"""

import argparse
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import fuprune  # noqa: E402


def make_step(path: str, factory: str, images: int):
    """A compiled step of 32x32 images: `(call, FLOPs as XLA counts, parameters)`."""
    model, variables = fuprune.load_safetensors(path, factory=factory)
    inputs = np.random.default_rng(0).normal(size=(images, 32, 32, 3))
    inputs, labels = jnp.asarray(inputs, jnp.float32), jnp.arange(images) % 10
    params = variables["params"]
    state = {name: tree for name, tree in variables.items() if name != "params"}

    def loss(params):
        logits, state_after = model.apply(
            {"params": params, **state}, inputs, train=True, mutable=["batch_stats"]
        )
        likelihood = jax.nn.log_softmax(logits)[jnp.arange(images), labels]
        return -jnp.mean(likelihood), state_after

    step = jax.jit(jax.value_and_grad(loss, has_aux=True)).lower(params).compile()
    costs = step.cost_analysis() or {}
    size = sum(leaf.size for leaf in jax.tree.leaves(params))
    return (
        lambda: jax.block_until_ready(step(params)),
        costs.get("flops", float("nan")),
        size,
    )


def main():
    """Measure interleaved, print the shortest of each."""
    parser = argparse.ArgumentParser(
        description="A training step before and after a cut."
    )
    parser.add_argument("models", nargs=2, help="safetensors, before and after")
    parser.add_argument("--factory", default="docs.mobilenet:make_model")
    parser.add_argument("--images", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    steps = [make_step(m, options.factory, options.images) for m in options.models]
    times = [[], []]
    for _ in range(options.repeats):
        for number, (step, *_) in enumerate(steps):
            start = time.perf_counter()
            step()
            times[number].append(time.perf_counter() - start)
    for path, seconds, (_, flops, size) in zip(
        options.models, times, steps, strict=True
    ):
        print(f"{path}: {min(seconds) * 1e3:.1f} ms, {flops / 1e6:.0f} MFLOPs, {size}")


if __name__ == "__main__":
    main()
