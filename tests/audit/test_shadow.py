import chex
import jax
import numpy as np
import pytest

from fuprune.audit import shadow, training
from fuprune.audit.outputs import compute_outputs
from fuprune.models.fresh import init_variables
from tests.audit.conftest import Perceptron, preprocess
from tests.compilations import counted


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


def test_too_few_images_for_every_shadow_model_are_refused():
    with pytest.raises(ValueError, match="1 images leave one of 2"):
        shadow.balanced_members(np.random.default_rng(0), 2, 1)


@pytest.mark.parametrize("backend", ["map", "vmap", "shard_map", "auto"])
def test_every_backend_trains_the_same_models(noise, backend):
    members = shadow.balanced_members(np.random.default_rng(0), 2, 240)
    loop = trained(noise, members, "loop", steps=5)
    other = trained(noise, members, backend, steps=5)
    chex.assert_trees_all_close(loop, other, rtol=1e-5, atol=1e-6)
    assert not np.allclose(
        loop[0]["params"]["head"]["kernel"], loop[1]["params"]["head"]["kernel"]
    )


def test_the_engine_takes_the_same_steps_as_a_plain_loop(noise):
    """Batches are the members', the rate falls along a cosine."""
    images, labels = noise
    model, steps, batch_size = Perceptron(width=64), 4, 8
    members = shadow.balanced_members(np.random.default_rng(0), 2, 240)
    found = trained(noise, members, "auto", steps=steps, batch_size=batch_size)
    init_key, batch_key, dropout_key = jax.random.split(jax.random.key(3), 3)
    generator = np.random.default_rng(np.asarray(jax.random.key_data(batch_key)))
    for s, member in enumerate(members):
        rows = training.batch_rows(generator, np.flatnonzero(member), steps, batch_size)
        assert member[rows].all()
        key = jax.random.split(init_key, 2)[s]
        state = training.init_state(init_variables(model, key, preprocess(images[:1])))
        for t, batch in enumerate(rows):
            state = training.sgd_step(
                model,
                ("head",),
                state,
                preprocess(images[batch]),
                labels[batch],
                jax.random.fold_in(jax.random.split(dropout_key, 2)[s], t),
                training.rate(0.05 * 0.5 * (1 + np.cos(np.pi * t / steps))),
            )
        chex.assert_trees_all_close(found[s], state.variables, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("backend", "expected"),
    [
        ("map", ["shadow model 1 of 2", "shadow model 2 of 2"]),
        ("vmap", ["shadow models 1 to 2 of 2, side by side"]),
    ],
)
def test_progress_names_the_models_in_training(noise, backend, expected):
    members = shadow.balanced_members(np.random.default_rng(0), 2, 240)
    told = []
    trained(noise, members, backend, steps=5, on_step=told.append)
    assert told == expected


def test_training_more_models_compiles_nothing(noise):
    members = shadow.balanced_members(np.random.default_rng(0), 2, 240)
    trained(noise, members, "map", steps=5)
    with counted() as programs:
        trained(noise, members[::-1], "map", steps=5)
    assert not programs


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


def test_an_attack_that_says_the_same_of_all_images_has_no_result():
    assert shadow.success_rate([-1.0, -2.0], [-0.5, -3.0]) is None
    assert shadow.success_rate([1.0, 2.0], [0.5, 3.0]) is None
    assert shadow.success_rate([1.0, -2.0], [0.5, -3.0]) == 0.5


def test_attack_features_do_not_depend_on_which_wrong_class_is_likely():
    logits = np.array([[3.0, 1.0, 0.0], [3.0, 0.0, 1.0]])
    features = shadow.attack_features(logits, [0, 0])
    np.testing.assert_allclose(features[0], features[1])


def test_unknown_backend_is_named(noise):
    with pytest.raises(ValueError, match="'pmap'"):
        trained(noise, np.ones((1, 240), bool), "pmap")
