"""The methods of a run on the audit's shadow models."""

from types import SimpleNamespace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.audit import AuditOptions, ShadowOptions
from fuprune.data.federated import federate
from fuprune.run.build import Setup
from fuprune.run.shadows import shadow_methods
from fuprune.unlearning.methods import METHODS
from fuprune.unlearning.request import ForgetRequest
from tests.settings import quickstart
from tests.tiny import TinyNet, tiny_dataset, tiny_variables

DATASET = tiny_dataset(48)
OPTIONS = AuditOptions(
    train_batch_size=8,
    shadow=ShadowOptions(fine_tune_steps=3, fine_tune_learning_rate=0.1),
)


def make_methods(**methods):
    config = quickstart()
    config.prune.rate = 0.34
    config.train.cohort = 2
    clients = np.array_split(np.arange(48), 4)
    federation = SimpleNamespace(
        data=federate(DATASET, clients),
        num_classes=4,
        prepare=lambda key, images: jnp.asarray(images, jnp.float32) / 255,
        request=ForgetRequest(classes=(1,)),
    )
    run = SimpleNamespace(
        setup=Setup(config, federation),
        federation=federation,
        classes=(1,),
    )
    return shadow_methods(run, TinyNet(), methods, {"head": "head"}, OPTIONS)


@pytest.mark.parametrize("method", ["class_pruning", "relabel", "mask_logit"])
def test_a_method_unlearns_a_shadow_model_as_it_did_the_raw_one(method):
    variables = tiny_variables()
    unlearn = make_methods(candidate=method)["candidate"]
    model, found = unlearn(TinyNet(), variables, jax.random.key(0), DATASET)
    # Masked, not cut: one program serves all shadow models.
    assert model == TinyNet()
    chex.assert_trees_all_equal_shapes(found, variables)
    before, after = (v["params"]["head"]["bias"] for v in (variables, found))
    if method == "mask_logit":
        np.testing.assert_array_equal(
            before[jnp.array([0, 2, 3])], after[jnp.array([0, 2, 3])]
        )
        assert after[1] <= -1e3
    else:
        assert not np.allclose(before, after)
    norms = [np.abs(found["params"][n]["norm"]["scale"]) for n in ("conv1", "conv2")]
    assert (np.concatenate(norms) == 0).any() == (method == "class_pruning")


def test_a_method_that_needs_the_records_of_a_training_is_left_to_the_stand_in():
    assert METHODS["amnesiac"].needs
    assert set(make_methods(first="amnesiac", second="fine_tune_only")) == {"second"}


def test_seeds_of_one_method_share_what_unlearns_shadow_models():
    made = make_methods(relabel="relabel", relabel_seed2="relabel", other="mask_logit")
    assert made["relabel"] is made["relabel_seed2"]
    assert made["relabel"] is not made["other"]
