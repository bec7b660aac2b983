import jax
import pytest

from fuprune.flower.settings import read_config
from fuprune.run import build
from tests.flower.small import CONFIG, federation, small_model


@pytest.fixture(scope="module")
def setting():
    """A config, its federation, a small network and variables of it."""
    config, model = read_config(CONFIG), small_model()
    variables = build.initial_variables(model, jax.random.key(1))
    return config, federation(config), model, variables
