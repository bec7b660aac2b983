"""The worked examples of CONTRIBUTING.md are followed to the letter."""

import json
import re

import chex
import jax
import numpy as np

from fuprune.unlearning.job import UnlearnResult
from tests.loading import load_module


def example(repository, folder, name):
    """The code that stands below its file's name, as a module."""
    text = (repository / "CONTRIBUTING.md").read_text()
    (code,) = re.findall(rf"<!-- {name} -->\n```python\n(.*?)```", text, re.DOTALL)
    path = folder / name
    path.write_text(code)
    return load_module(path)


def test_method_of_the_example_keeps_the_contract(repository, tmp_path, monkeypatch):
    from fuprune.unlearning import method as declaring
    from tests.unlearning.small import SmallNet, initial, make_fine_tune, small_data

    # Other tests are about the methods of the package.
    monkeypatch.setattr(declaring, "METHODS", dict(declaring.METHODS))
    method = example(repository, tmp_path, "noisy_head.py").noisy_head
    model, data, fine_tune = SmallNet(), small_data(), make_fine_tune()
    variables = initial(model)

    def forget():
        return method(
            model, variables, data, (1, 3), key=jax.random.key(7), fine_tune=fine_tune
        )

    result = forget()
    assert isinstance(result, UnlearnResult) and result.fit is not None
    chex.assert_tree_all_finite(result.variables)
    chex.assert_trees_all_equal(result.variables, forget().variables)
    json.dumps(dict(result.notes))
    before = variables["params"]["head"]["kernel"]
    (stage,) = result.stages
    after = stage.variables["params"]["head"]["kernel"]
    changed = np.any(np.asarray(before != after), axis=0)
    assert changed.tolist() == [False, True, False, True]


def test_network_of_the_example_is_cut_and_stays_the_same_function(
    repository, tmp_path
):
    import jax.numpy as jnp

    import fuprune
    from fuprune.models.brought import bring

    factory = example(repository, tmp_path, "swish_net.py").swish_net
    model = bring(factory, num_classes=4, input_shape=(8, 8, 1))
    images = jax.random.uniform(jax.random.key(1), (3, 8, 8, 1))
    variables = model.init(jax.random.key(0), images)
    layers = fuprune.class_activations(
        model, variables, images, jnp.arange(3), num_classes=4
    ).total
    scores = {name: np.arange(total.shape[1]) for name, total in layers.items()}
    plan = fuprune.make_plan(scores, 0.25)
    slim, cut = fuprune.compact(model, variables, plan)
    dead = fuprune.mask(model, variables, plan)

    def size(tree):
        return sum(leaf.size for leaf in jax.tree.leaves(tree))

    assert size(cut) < size(variables)
    np.testing.assert_allclose(
        slim.apply(cut, images, train=False),
        model.apply(dead, images, train=False),
        rtol=1e-5,
        atol=1e-5,
    )


def test_data_set_of_the_example_is_read_and_named(repository, tmp_path, monkeypatch):
    import fuprune
    from fuprune.data.known_sets import KNOWN_SETS
    from fuprune.data.normalisation import constant_statistics
    from tests.data import tiny_sets

    # Put there and taken away: the row is gone when the test is over.
    monkeypatch.setitem(KNOWN_SETS, "kannada_mnist", None)
    example(repository, tmp_path, "kannada.py")
    expected = tiny_sets.draw(5, (28, 28, 1))
    tiny_sets.write_idx(tmp_path / "Kannada_MNIST", expected, expected)
    found = fuprune.load_dataset("kannada_mnist", split="train", data_dir=tmp_path)
    tiny_sets.assert_same(found, expected)
    assert fuprune.class_names("kannada_mnist")[9] == "ombattu"
    assert constant_statistics("kannada_mnist", 1) == ((0.5,), (0.25,))


def test_targets_that_contributors_are_told_of_exist(repository):
    text = (repository / "CONTRIBUTING.md").read_text()
    makefile = (repository / "Makefile").read_text()
    for target in set(re.findall(r"(?m)(?:^|`)make ([a-z-]+)", text)):
        assert f"\n{target}:" in makefile, target
    for path in set(re.findall(r"`((?:fuprune|tests)/[a-z_/]+\.(?:py|md))`", text)):
        assert (repository / path).exists(), path
