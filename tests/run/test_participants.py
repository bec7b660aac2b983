"""A run gives all methods that read clients the same ones, and says who lacks what."""

import inspect
from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np

from fuprune import config as configuration
from fuprune.data.federated import federate
from fuprune.run import build
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.request import ForgetRequest
from tests.settings import quickstart
from tests.tiny import tiny_dataset

DATASET = tiny_dataset(40)
# Two clients per class, as with q = 1.
ONE_CLASS_EACH = federate(
    DATASET, [np.flatnonzero(DATASET.labels == u % 4) for u in range(8)]
)


def options(config, method, request=ForgetRequest(classes=(1,))):  # noqa: B008
    federation = SimpleNamespace(
        data=ONE_CLASS_EACH,
        num_classes=4,
        prepare=jnp.asarray,
        request=request,
        clients=None,
    )
    return build.method_options(build.Setup(config, federation, "map"), method)


def make_config(**values):
    config = quickstart()
    config.partition.clients = 8
    config.train.cohort = 3
    configuration.update(config, values)
    return config


def test_every_method_that_reads_clients_reads_the_same_ones():
    config = make_config()
    chosen = {
        options(config, name)["participants"]
        for name, method in METHODS.items()
        if method.reads_forgotten
    }
    (participants,) = chosen
    assert len(set(participants)) == 3
    other = make_config(**{"unlearn.participants": 5})
    assert len(options(other, "fisher")["participants"]) == 5


def test_options_are_those_of_the_methods_sections():
    config = make_config(**{"prune.order": "lowest", "fisher.alpha": 3e-6})
    assert options(config, "fisher")["alpha"] == 3e-6
    assert options(config, "class_pruning")["order"] == "lowest"
    assert options(config, "prune_relabel")["answer"] == config.relabel.answer
    for name, method in METHODS.items():
        known = set(inspect.signature(method).parameters)
        assert set(options(config, name)) <= known, name
    assert options(config, "retrain_short").keys() == options(config, "retrain").keys()


def test_a_class_that_no_participant_holds_is_told_before_training():
    config = make_config(**{"unlearn.participants": 1})
    config.unlearn.methods = "class_pruning,fisher,retrain,influence"

    def forgetting(class_id):
        request = ForgetRequest(classes=(class_id,))
        return SimpleNamespace(data=ONE_CLASS_EACH, request=request)

    (client,) = build.participants(config, "class_pruning", forgetting(0))
    held = client % 4
    assert build.describe_absences(config, forgetting(held)) == []
    lines = build.describe_absences(config, forgetting((held + 1) % 4))
    assert [line.split()[0] for line in lines] == ["class_pruning", "influence"]
    assert all("raise unlearn.participants" in line for line in lines)
