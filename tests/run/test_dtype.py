"""What `runtime.dtype=auto` means on each kind of machine."""

import types

import jax
import pytest

from fuprune.kernels import library
from fuprune.run import machine


@pytest.mark.parametrize(
    ("platform", "conv", "fast", "expected"),
    [
        ("cpu", "onednn", True, "bfloat16"),
        ("cpu", "onednn", False, "float32"),
        ("cpu", "xla", True, "float32"),  # XLA's convolutions convert every product
        ("tpu", "xla", None, "bfloat16"),
        ("gpu", "xla", "8.0", "bfloat16"),
        ("gpu", "xla", "7.5", "float32"),
    ],
)
def test_auto_is_bfloat16_where_it_is_multiplied_faster(
    platform, conv, fast, expected, monkeypatch, caplog
):
    caplog.set_level("INFO")
    device = types.SimpleNamespace(compute_capability=fast)
    if platform != "gpu":
        del device.compute_capability
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    monkeypatch.setattr(library, "multiplies_bfloat16", lambda: fast)
    monkeypatch.setattr(machine.processes, "any_process", bool)
    assert machine.choose_dtype("auto", conv) == expected
    assert f"activations are {expected}" in caplog.text
    assert machine.choose_dtype("float32", conv) == "float32"
