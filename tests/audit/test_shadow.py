import chex
import jax
import numpy as np
import pytest

from fuprune.audit import shadow
from fuprune.audit.outputs import compute_outputs
from tests.audit.conftest import Perceptron, preprocess


@pytest.fixture(scope="module")
def noise():
    """Images that carry nothing of their label: only memory gets them right."""
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (240, 6, 6, 1)).astype(np.uint8)
    return images, np.tile(np.arange(4), 60).astype(np.int32)


def trained(noise, members, backend, **options):
    options = {"steps": 250, "batch_size": 32, **options}
    return shadow.train_models_in_parallel(
        Perceptron(width=64),
        jax.random.key(3),
        *noise,
        members,
        preprocess,
        backend=backend,
        **options,
    )


def test_every_example_is_in_for_half_of_the_models():
    members = shadow.balanced_members(np.random.default_rng(0), 6, 50)
    np.testing.assert_array_equal(members.sum(axis=0), 3)
    assert not (members == members[0]).all()


@pytest.mark.parametrize("number", [1, 3])
def test_odd_numbers_of_shadow_models_are_refused(number):
    with pytest.raises(ValueError, match="even number"):
        shadow.balanced_members(np.random.default_rng(0), number, 10)


def test_loop_and_vmap_train_the_same_models(noise):
    members = shadow.balanced_members(np.random.default_rng(0), 2, 240)
    loop = trained(noise, members, "loop", steps=5)
    vmap = trained(noise, members, "vmap", steps=5)
    chex.assert_trees_all_close(loop, vmap, rtol=1e-4, atol=1e-5)
    assert not np.allclose(
        loop[0]["params"]["head"]["kernel"], loop[1]["params"]["head"]["kernel"]
    )


def test_training_is_a_function_of_the_key(noise):
    members = shadow.balanced_members(np.random.default_rng(0), 2, 240)
    chex.assert_trees_all_equal(
        trained(noise, members, "vmap", steps=5),
        trained(noise, members, "vmap", steps=5),
    )


def test_attack_learnt_on_shadows_catches_a_model_that_memorised(noise):
    images, labels = noise
    members = shadow.balanced_members(np.random.default_rng(0), 4, 240)
    models = trained(noise, members, "vmap")
    logits = np.stack(
        [
            compute_outputs(Perceptron(width=64), v, images, preprocess).logits
            for v in models
        ]
    )
    # The last model is the target, the others the shadows.
    attack = shadow.fit_attack(logits[:3], labels, members[:3])
    scores = shadow.attack_scores(attack, logits[3], labels)
    caught = shadow.success_rate(scores[members[3]], scores[~members[3]])
    assert caught > 0.8
    unrelated = np.random.default_rng(1).permutation(members[3])
    guess = shadow.success_rate(scores[unrelated], scores[~unrelated])
    assert abs(guess - 0.5) < 0.12


def test_attack_features_do_not_depend_on_which_wrong_class_is_likely():
    logits = np.array([[3.0, 1.0, 0.0], [3.0, 0.0, 1.0]])
    features = shadow.attack_features(logits, [0, 0])
    np.testing.assert_allclose(features[0], features[1])


def test_unknown_backend_is_named(noise):
    with pytest.raises(ValueError, match="'pmap'"):
        trained(noise, np.ones((1, 240), bool), "pmap")
