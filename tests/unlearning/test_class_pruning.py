"""The method as a whole: cut, stages, several classes, and who sees which images."""

import hypothesis
import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.data.federated import FederatedDataset, federate, take_clients
from fuprune.models import zoo
from fuprune.models.adapt import adapt
from fuprune.models.fresh import init_variables
from fuprune.models.resnet import ResNet
from fuprune.surgery import compact, layer_names, trace_layers
from fuprune.unlearning.activations import ClassActivations, collect, merge_activations
from fuprune.unlearning.class_pruning import server_proc
from fuprune.unlearning.protocol import UnlearnError
from tests.compilations import counted
from tests.tiny import tiny_dataset
from tests.unlearning.small import forget_by, remembering, small_data

MODEL = zoo.create("resnet8", num_classes=4, input_shape=(6, 6, 1))


@pytest.fixture(scope="module")
def trained():
    """A network with random weights and statistics, and four clients' data."""
    dataset = tiny_dataset(40)
    data = federate(dataset, np.array_split(np.arange(40), 4))
    variables = jax.jit(MODEL.init)(
        jax.random.key(0), np.zeros((1, 6, 6, 1), np.float32)
    )
    return data, variables


def forget(trained, classes, model=MODEL, **options):
    """The method on a network, by default the fixture's."""
    data, variables = trained
    options = dict(rate=0.1, num_classes=4, seed=1) | options
    return forget_by("class_pruning", model, variables, data, classes, **options)


def test_the_cut_is_real_and_described(trained):
    """A tenth of the channels is gone; the notes say which, and what it saved."""
    result = forget(trained, (3,))
    before, after = (
        sum(found.channels for found in trace_layers(model, None).values())
        for model in (MODEL, result.model)
    )
    assert after == before - int(0.1 * before)
    (cut,) = result.notes["cuts"]
    assert cut["class"] == 3
    assert sum(len(c) for c in cut["cut"].values()) == before - after
    total = cut["plan"][-1]
    assert total["parameters_after"] < total["parameters_before"]
    assert result.upload_bytes < result.notes["model_bytes"] / 20
    assert [s.name for s in result.stages] == ["pruned_3"]


def test_channels_that_start_afresh_leave_the_network_as_large_as_it_was(trained):
    result = forget(trained, (3,), then="reset")
    (cut,) = result.notes["cuts"]
    assert sum(len(c) for c in cut["cut"].values()) > 0
    assert all(row["channels_after"] == row["channels_before"] for row in cut["plan"])
    shapes = [jax.tree.map(jnp.shape, v) for v in (result.variables, trained[1])]
    assert shapes[0] == shapes[1]


def test_fine_tuning_never_sees_the_forgotten_classes(trained):
    """Not one row of any client points at an image of them."""
    seen = []
    forget(trained, (1, 3), fine_tune=remembering(seen))
    _, _, data, _ = seen[0]
    assert isinstance(data, FederatedDataset)
    rows, lengths = np.asarray(data.rows), np.asarray(data.lengths)
    labels = np.asarray(data.labels)
    held = np.concatenate([rows[k, : lengths[k]] for k in range(len(rows))])
    assert set(labels[held]) == {0, 2} and len(held) == 20


def test_several_classes_are_cut_one_after_another(trained):
    """A stage for each, every one smaller than the last, channels by original id."""
    result = forget(trained, (3, 0))
    assert [s.name for s in result.stages] == ["pruned_3", "pruned_0"]
    first, second = result.notes["cuts"]
    for layer, gone in second["cut"].items():
        assert not set(gone) & set(first["cut"][layer])
    sizes = [
        sum(x.size for x in jax.tree.leaves(s.variables["params"]))
        for s in result.stages
    ]
    assert sizes[0] > sizes[1]


def test_reused_and_recaptured_statistics_may_choose_differently(trained):
    """Reuse sends one upload, recapture one per class."""
    again = forget(trained, (3, 0))
    reused = forget(trained, (3, 0), recapture=False)
    assert again.upload_bytes > reused.upload_bytes
    assert again.notes["cuts"][0]["cut"] == reused.notes["cuts"][0]["cut"]


def both_surgeries(model, variables, data, classes, **options):
    """The method by mask and by compact, without any fine-tuning."""
    return (
        forget((data, variables), classes, model, surgery=surgery, **options)
        for surgery in ("mask", "compact")
    )


@hypothesis.settings(max_examples=4, deadline=None)
@hypothesis.given(
    classes=st.permutations(range(4)).map(lambda order: tuple(order[:3])),
    scope=st.sampled_from(["global", "layer", "balanced"]),
    order=st.sampled_from(["highest", "lowest", "random"]),
    idf=st.sampled_from(["paper", "released"]),
    recapture=st.booleans(),
    rate=st.sampled_from([0.1, 0.45]),
    min_channels=st.sampled_from([1, 7]),
)
def test_masking_and_compacting_agree_over_several_classes(classes, **options):
    """Dead channels take no part in R, in Eq. 7's mean, in min_channels."""
    _, data, variables = _drawn_network(MODEL)
    masked, compacted = both_surgeries(MODEL, variables, data, classes, **options)
    assert_same_cuts(masked.notes["cuts"], compacted.notes["cuts"])
    images = np.random.default_rng(0).normal(size=(3, 6, 6, 1)).astype(np.float32)
    np.testing.assert_allclose(
        compacted.model.apply(compacted.variables, images),
        masked.model.apply(masked.variables, images),
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.slow
@pytest.mark.parametrize("scope", ["global", "layer", "balanced"])
@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
def test_masking_and_compacting_agree_for_the_zoo(name, scope):
    model = zoo.create(name, num_classes=4, input_shape=(6, 6, 1), norm="group")
    model, data, variables = _drawn_network(model)
    masked, compacted = both_surgeries(
        model, variables, data, (2, 0, 3), scope=scope, rate=0.2
    )
    assert_same_cuts(masked.notes["cuts"], compacted.notes["cuts"])


def test_a_network_masked_before_is_cut_like_the_compacted_one():
    """A second request, on what the first one left."""
    _, data, variables = _drawn_network(MODEL)
    first = forget((data, variables), (1,), surgery="mask", rate=0.3)
    again = forget((data, first.variables), (2,), surgery="compact", rate=0.3)
    both = forget((data, variables), (1, 2), rate=0.3)
    assert_same_cuts(again.notes["cuts"], both.notes["cuts"][1:])


def _drawn_network(model):
    """Random weights, norms and statistics, and four clients' data."""
    variables = init_variables(model, jax.random.key(0), jnp.zeros((1, 6, 6, 1)))
    return model, small_data(), variables


def assert_same_cuts(ours, theirs):
    """Equal, up to the rounding of scores."""
    for one, other in zip(ours, theirs, strict=True):
        for layer, scores in one["scores"].items():
            np.testing.assert_allclose(
                scores, other["scores"][layer], rtol=1e-3, atol=1e-6
            )
        assert {**one, "scores": 0} == {**other, "scores": 0}


def plain_function(layout, name):
    """A network in plain JAX, with a kernel of any layout and name."""

    def init(key, images):
        del images
        kernel = jax.random.normal(key, (3, 3, 1, 6))
        order = ["HWIO".index(axis) for axis in layout]
        head = 0.3 * jax.random.normal(key, (6, 4))
        first = {name: 0.3 * jnp.transpose(kernel, order)}
        return {"params": {"first": first, "head": {"kernel": head}}}

    def apply(variables, images):
        params = variables["params"]
        x = jax.lax.conv_general_dilated(
            images,
            params["first"][name],
            (1, 1),
            "SAME",
            dimension_numbers=("NHWC", layout, "NHWC"),
        )
        return jnp.mean(jax.nn.relu(x), (1, 2)) @ params["head"]["kernel"]

    return adapt(apply, init=init)


@pytest.mark.parametrize("recapture", [True, False])
@pytest.mark.parametrize("surgery", ["compact", "mask"])
def test_several_classes_are_cut_of_networks_of_any_layout(surgery, recapture):
    """Axes and names of kernels are the author's own."""
    data, found = small_data(), []
    for layout, name in (("HWIO", "kernel"), ("HWIO", "w"), ("OIHW", "w")):
        network = plain_function(layout, name)
        variables = network.init(jax.random.key(0), None)
        result = forget_by(
            "class_pruning",
            network,
            variables,
            data,
            (2, 1),
            rate=0.34,
            surgery=surgery,
            recapture=recapture,
        )
        found.append([cut["cut"] for cut in result.notes["cuts"]])
        images = jnp.asarray(data.images[:3]) / 255.0
        logits = result.model.apply(result.variables, images)
        assert logits.shape == (3, 4) and np.all(np.isfinite(logits))
    first, second = (cut["first"] for cut in found[0])
    assert first and second and not set(first) & set(second)
    assert found == [found[0]] * 3


def test_classes_that_no_participant_holds_are_left_out(trained):
    """Only the target must be there; U of Eq. 7 is the number of those that are."""
    _, variables = trained
    dataset = tiny_dataset(40)
    by_class = [np.flatnonzero(dataset.labels == u) for u in range(4)]
    data = federate(dataset, by_class)
    result = forget((data, variables), (3,), participants=(3, 1))
    assert result.notes["absent"] == [0, 2]
    uploads = collect(
        MODEL, variables, take_clients(data, [1, 3]), num_classes=4
    ).uploads
    present = {k: a[[1, 3]] for k, a in merge_activations(uploads).items()}
    expected = server_proc(present, 1, 0.1)
    for layer, scores in result.notes["cuts"][0]["scores"].items():
        np.testing.assert_allclose(scores, expected.scores[layer], rtol=1e-4, atol=1e-6)
    with pytest.raises(UnlearnError, match="no statistics of class 3 arrived"):
        forget((data, variables), (3,), participants=(0, 1, 2))


def test_server_proc_scores_every_layer():
    """One score per channel, and a plan for each layer."""
    generator = np.random.default_rng(0)
    activations = {"a": generator.random((3, 5)), "b": generator.random((3, 8))}
    decision = server_proc(activations, 1, 0.3)
    assert {k: v.shape for k, v in decision.scores.items()} == {"a": (5,), "b": (8,)}
    assert sum(len(k) for k in decision.plan.keep.values()) == 13 - 3


def test_scoring_and_surgery_compile_one_program_for_each_network(trained):
    """Layers of several widths: not a program for each operation and width."""
    _, variables = trained
    generator = np.random.default_rng(0)

    def decide(target):
        # Counts that no other test has, so that nothing was compiled before.
        activations = merge_activations(
            [
                ClassActivations(
                    {
                        layer: generator.random((7, 16)).astype(np.float32)
                        for layer in layer_names(MODEL)
                    },
                    np.full(7, 3.0, np.float32),
                )
                for _ in range(2)
            ]
        )
        return server_proc(activations, target, 0.1)

    with counted() as programs:
        decision = decide(2)
    assert len(programs) <= 1
    with counted() as programs:
        decide(5)
        compact(MODEL, variables, decision.plan)
    assert not programs
    assert list(decision.scores) == list(layer_names(MODEL))


def test_suppressed_classes_are_left_out_of_the_scores(trained):
    """As if there were no such class; a target that is suppressed is an error."""
    _, variables = trained
    labels = tiny_dataset(40).labels
    # Every client has two or three images of a class, and one of class 0.
    rest = [*np.flatnonzero(labels != 0)]
    parts = [[*rest[i::4], np.flatnonzero(labels == 0)[i]] for i in range(4)]
    data = federate(tiny_dataset(40), parts)
    uploads = collect(
        MODEL, variables, take_clients(data, range(4)), num_classes=4
    ).uploads
    activations = merge_activations(uploads)
    expected = server_proc({k: a[1:] for k, a in activations.items()}, 2, 0.1)
    result = forget((data, variables), (3,), min_count=2)
    assert result.notes["suppressed"] == [0]
    for layer, scores in result.notes["cuts"][0]["scores"].items():
        np.testing.assert_allclose(scores, expected.scores[layer], rtol=1e-4, atol=1e-6)
    with pytest.raises(UnlearnError, match="class 3 arrived.*min_count"):
        forget((data, variables), (3,), min_count=9)


def test_layers_are_scored_in_forward_order_so_that_ties_fall_that_way():
    model = ResNet(8, 4, (6, 6, 1))
    model, data, variables = _drawn_network(model)
    result = forget((data, variables), (1,), model, surgery="mask")
    (cut,) = result.notes["cuts"]
    # "stem" comes first in the network and last in the alphabet.
    assert tuple(cut["scores"]) == tuple(cut["cut"]) == layer_names(model)
