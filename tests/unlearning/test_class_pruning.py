"""The method as a whole: cut, stages, several classes, and who sees which images."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.data.federated import FederatedDataset, federate, take_clients
from fuprune.errors import UnlearnError
from fuprune.models.fresh import init_variables
from fuprune.models.resnet import ResNet
from fuprune.surgery import compact, layer_names, trace_layers
from fuprune.unlearning.activations import collect, merge_activations
from fuprune.unlearning.class_pruning import server_proc
from fuprune.unlearning.job import tree_bytes
from tests.compilations import counted
from tests.tiny import tiny_dataset
from tests.unlearning.small import SmallNet, forget_by, remembering, small_data

MODEL = SmallNet(width=24)


@pytest.fixture(scope="module")
def trained():
    return drawn_network(MODEL)


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
    assert result.upload_bytes < tree_bytes(trained[1]) / 20
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


def drawn_network(model):
    """Four clients' data, and random weights and statistics."""
    images = jnp.zeros((1, 6, 6, 1))
    return small_data(), init_variables(model, jax.random.key(0), images)


@pytest.mark.parametrize(
    "options",
    [
        dict(scope="layer", recapture=False, min_channels=7, rate=0.45),
        dict(scope="balanced", order="random", rate=0.3),
        dict(idf="released", order="lowest", recapture=False, rate=0.1),
    ],
)
def test_masking_and_compacting_agree_over_several_classes(options):
    """Dead channels take no part in R, in Eq. 7's mean, in min_channels."""
    model = SmallNet(width=12)
    given = drawn_network(model), (2, 0, 3), model
    masked, compacted = (
        forget(*given, surgery=surgery, **options) for surgery in ("mask", "compact")
    )
    assert_same_cuts(masked.notes["cuts"], compacted.notes["cuts"])
    images = np.random.default_rng(0).normal(size=(3, 6, 6, 1)).astype(np.float32)
    logits = [x.model.apply(x.variables, images) for x in (masked, compacted)]
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-4)


def test_a_network_masked_before_is_cut_like_the_compacted_one():
    """A second request, on what the first one left."""
    data, variables = drawn_network(MODEL)
    first = forget((data, variables), (1,), surgery="mask", rate=0.3)
    again = forget((data, first.variables), (2,), surgery="compact", rate=0.3)
    both = forget((data, variables), (1, 2), rate=0.3)
    assert_same_cuts(again.notes["cuts"], both.notes["cuts"][1:])


def assert_same_cuts(ours, theirs):
    """Equal, up to the rounding of scores."""
    for one, other in zip(ours, theirs, strict=True):
        for layer, scores in one["scores"].items():
            np.testing.assert_allclose(
                scores, other["scores"][layer], rtol=1e-3, atol=1e-6
            )
        assert {**one, "scores": 0} == {**other, "scores": 0}


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
    generator = np.random.default_rng(0)
    # Counts that no other test has, so that nothing was compiled before.
    activations = {
        layer: generator.random((7, 16)).astype(np.float32)
        for layer in layer_names(MODEL)
    }
    with counted() as programs:
        decision = server_proc(activations, 2, 0.1)
    assert len(programs) <= 1
    with counted() as programs:
        server_proc(activations, 5, 0.1)
        compact(MODEL, trained[1], decision.plan)
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
    result = forget(drawn_network(model), (1,), model, surgery="mask")
    (cut,) = result.notes["cuts"]
    # "stem" comes first in the network and last in the alphabet.
    assert tuple(cut["scores"]) == tuple(cut["cut"]) == layer_names(model)
