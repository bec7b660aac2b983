"""Eight CPU devices, made before JAX starts; hence a run of pytest of its own."""

import os

os.environ["JAX_NUM_CPU_DEVICES"] = "8"

import jax
import pytest


@pytest.fixture(autouse=True, scope="session")
def eight_devices():
    """These tests mean nothing on one device."""
    if jax.device_count() != 8:
        pytest.skip("JAX was started with other devices: run this folder by itself")
