"""local_proc and A*: twins of Eqs. 4-5, bounded memory, and what is turned away."""

import gc
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fuprune.data.federated import federate, whole_cohort
from fuprune.errors import UnlearnError
from fuprune.federated.cohort import Shared, clients_of, for_each_client
from fuprune.unlearning.activations import (
    ClassActivations,
    activations_program,
    ask,
    check_statistics,
    class_activations,
    collect,
    merge_activations,
)
from tests import reference
from tests.compilations import counted
from tests.tiny import TinyNet, tiny_dataset, tiny_variables

MODEL = TinyNet()
CUTS = [0, 9, 9, 20, 24]


@pytest.fixture(scope="module")
def federation():
    """Four clients, one empty; client 3 lacks no class, client 0 holds nine images."""
    dataset = tiny_dataset(24)
    parts = [np.arange(a, b) for a, b in zip(CUTS, CUTS[1:], strict=False)]
    return dataset, federate(dataset, parts), tiny_variables()


def twin_uploads(dataset, variables):
    """Each client's (label, activation) pairs of the first layer, by loops."""
    kernel = np.asarray(variables["params"]["conv1"]["conv"]["kernel"], np.float64)
    uploads = []
    for a, b in zip(CUTS, CUTS[1:], strict=False):
        pairs = []
        for i in range(a, b):
            feature_map = reference.convolve(dataset.images[i] / 255.0, kernel)
            pairs.append((int(dataset.labels[i]), reference.pooled(feature_map)))
        uploads.append(pairs)
    return [pairs for pairs in uploads if pairs]


@pytest.mark.parametrize("weighting", ["examples", "clients"])
@pytest.mark.parametrize("backend", ["loop", "map", "vmap", "shard_map"])
def test_merged_activations_equal_their_twin(federation, weighting, backend):
    """Capture, ReLU, pool, sum by class, merge: the same numbers as loops give."""
    dataset, data, variables = federation
    collected = collect(
        MODEL,
        variables,
        whole_cohort(data),
        num_classes=4,
        batch_size=4,
        backend=backend,
    )
    assert collected.clients == [0, 2, 3] and not collected.rejected
    merged = merge_activations(collected.uploads, weighting=weighting)
    expected = reference.merge(twin_uploads(dataset, variables), weighting=weighting)
    np.testing.assert_allclose(merged["conv1"], expected, atol=1e-5)
    assert set(merged) == {"conv1", "conv2"}


def test_padding_does_not_enter_even_as_nan(federation):
    """A masked image may hold anything."""
    dataset, _, variables = federation
    images = jnp.asarray(dataset.images[:5], jnp.float32) / 255.0
    labels = jnp.asarray(dataset.labels[:5])
    mask = jnp.array([1.0, 1, 1, 1, 0])
    options = dict(num_classes=4)
    spoiled = class_activations(
        MODEL, variables, images.at[4].set(jnp.nan), labels, mask, **options
    )
    clean = class_activations(MODEL, variables, images[:4], labels[:4], **options)
    for layer in clean.total:
        np.testing.assert_allclose(spoiled.total[layer], clean.total[layer], atol=1e-5)
    assert spoiled.num_examples.tolist() == clean.num_examples.tolist()


def test_memory_of_capturing_is_bounded_by_the_batch():
    """Sixteen times the images, the same temporary memory; only sums come out."""
    variables = tiny_variables()
    sizes, outputs = {}, {}
    for number in (32, 512):
        data = federate(tiny_dataset(number), [np.arange(number)])
        cohort = whole_cohort(data)
        run = for_each_client(
            activations_program(MODEL, num_classes=4, batch_size=8), backend="map"
        )
        shared = Shared(cohort.images, cohort.labels, variables)
        compiled = run.lower(shared, clients_of(cohort)).compile()
        memory = compiled.memory_analysis()
        sizes[number] = memory.temp_size_in_bytes
        outputs[number] = memory.output_size_in_bytes
    one_map = 8 * 6 * 6 * 6 * 4  # one layer's feature maps of one batch
    assert sizes[512] <= sizes[32] + one_map
    assert sizes[512] < 20 * one_map
    assert outputs[512] == outputs[32] <= 4 * (2 * 4 * 6 + 4) + 64


def test_a_client_whose_statistics_are_broken_is_turned_away_alone(federation):
    """The rest goes on; the log says who and why."""
    _, data, variables = federation

    def broken(model, **options):
        program = activations_program(model, **options)

        def finish(shared, client, carry):
            spoil = jnp.where(client.client_id == 2, jnp.nan, 1.0)
            return (), carry._replace(
                total={k: v * spoil for k, v in carry.total.items()}
            )

        return program._replace(finish=finish)

    given = (MODEL, variables, whole_cohort(data))
    collected = ask(broken, *given, backend="vmap", num_classes=4, batch_size=8)
    assert collected.clients == [0, 3]
    assert list(collected.rejected) == [2] and "NaN" in collected.rejected[2]


@pytest.mark.parametrize("weighting", ["examples", "clients", "median"])
def test_a_class_nobody_holds_has_no_mean(federation, weighting):
    """Its row is NaN, not a class that is silent; the others are as without it."""
    _, data, variables = federation
    four, six = (
        collect(MODEL, variables, whole_cohort(data), num_classes=number).uploads
        for number in (4, 6)
    )
    merged = merge_activations(six, weighting=weighting)
    for layer, expected in merge_activations(four, weighting=weighting).items():
        np.testing.assert_array_equal(merged[layer][:4], expected)
        assert np.all(np.isnan(merged[layer][4:]))


def test_a_sum_does_not_tell_clients_apart():
    """Weighing clients alike would silently weigh images alike instead."""
    total = ClassActivations({"l": np.ones((2, 3))}, np.ones(2))
    merge_activations(total)
    with pytest.raises(UnlearnError, match="weighting is 'clients'.*examples"):
        merge_activations(total, weighting="clients")


def test_fewer_than_half_cannot_move_the_median_beyond_the_others():
    honest = [
        ClassActivations({"l": np.full((2, 3), float(v))}, np.ones(2))
        for v in (4, 5, 6)
    ]
    liars = [ClassActivations({"l": np.full((2, 3), 1e30)}, np.ones(2))] * 2
    merged = merge_activations([*liars, *honest], weighting="median")["l"]
    assert np.all((merged >= 4) & (merged <= 6))
    # Two have no majority: then it is the mean over images.
    two = merge_activations(honest[:2], weighting="median")["l"]
    np.testing.assert_allclose(two, 4.5)


def test_a_class_a_client_lacks_does_not_drag_its_mean():
    """Clients without the class have no say in it, in either weighting."""
    full = ClassActivations({"l": np.full((2, 3), 8.0)}, np.array([4.0, 4.0]))
    half = ClassActivations(
        {"l": np.array([[6.0, 6, 6], [0, 0, 0]])}, np.array([2.0, 0.0])
    )
    for weighting in ("examples", "clients"):
        merged = merge_activations([full, half], weighting=weighting)
        np.testing.assert_allclose(merged["l"][1], 2.0)


def test_clipping_bounds_what_one_image_contributes(federation):
    """The L2 norm over all layers is at most the clip."""
    dataset, _, variables = federation
    images = jnp.asarray(dataset.images[:1], jnp.float32)
    labels = jnp.asarray(dataset.labels[:1])
    sums = class_activations(MODEL, variables, images, labels, num_classes=4, clip=0.25)
    norm = np.sqrt(sum(float(jnp.sum(t**2)) for t in sums.total.values()))
    assert norm == pytest.approx(0.25, rel=1e-5)


@pytest.mark.parametrize("backend", ["loop", "shard_map"])
def test_capturing_again_compiles_nothing(federation, backend):
    """Each class removed, and each method that prunes, captures on the same network."""
    _, data, variables = federation
    other = jax.tree.map(lambda x: x + 0.5, variables)
    given = dict(cohort=whole_cohort(data), num_classes=4, backend=backend)
    collect(MODEL, variables, **given)
    with counted() as programs:
        again = collect(TinyNet(), other, **given)
    assert not programs
    fresh = collect(MODEL, other, **given, batch_size=7)
    for one, two in zip(again.uploads, fresh.uploads, strict=True):
        np.testing.assert_allclose(one.total["conv2"], two.total["conv2"], rtol=1e-4)


def test_kept_programs_do_not_keep_the_images():
    """What is remembered is compiled code, not a federation that is gone."""
    data = federate(tiny_dataset(20), np.array_split(np.arange(20), 2))
    cohort = whole_cohort(data)
    collect(MODEL, tiny_variables(), cohort, num_classes=4, backend="loop")
    address = cohort.images.unsafe_buffer_pointer()
    del data, cohort
    gc.collect()
    alive = [x for x in jax.live_arrays() if x.dtype == jnp.uint8]
    assert all(x.unsafe_buffer_pointer() != address for x in alive)


HONEST = np.array([[1, 2], [0, 0], [3, 4]], np.float32)
COUNTS = np.array([2, 0, 5], np.int32)


def statistics(total=None, counts=COUNTS):
    return ClassActivations({"conv1": HONEST} if total is None else total, counts)


def floats(*rows):
    return {"conv1": np.array(rows, np.float32)}


@pytest.mark.parametrize(
    ("upload", "reason"),
    [
        (statistics(counts=np.array([2, 0, -5], np.int32)), "negative count, -5"),
        (statistics(counts=np.array([2, 0, 500], np.int32)), "502 examples are above"),
        (statistics(counts=np.array([2, 0, 5], np.float32)), "is float32"),
        (statistics(counts=np.array([2, 5], np.int32)), "shape (2,), not"),
        (statistics(floats([-1, -1], [0, 0], [1, 1])), "negative sum"),
        (statistics(floats([1, 1], [1, 1], [1, 1])), "without examples"),
        (statistics(floats([np.nan, 1], [0, 0], [1, 1])), "NaN"),
        (statistics(floats([np.inf, 1], [0, 0], [1, 1])), "NaN"),
        (statistics(floats([9, 9], [0, 0], [0, 0])), "norm is above 2"),
        (statistics(floats([1, 2, 3], [0, 0, 0])), "shape (2, 3)"),
        (statistics({"conv1": HONEST.astype(np.float64)}), "is float64"),
        (statistics({"conv1": HONEST.astype(np.complex64)}), "complex64"),
        (statistics({"conv1": np.array([[None] * 2] * 3)}), "is object"),
        (statistics({"conv1": "abc"}), "is no array"),
        (statistics({"conv2": HONEST}), "conv1 is missing"),
        (statistics([]), "conv1 is missing"),
        (statistics("conv1"), "total is no array"),
        (statistics({"conv1": HONEST, "x": np.zeros(1)}), "x is float64"),
        (statistics({1: np.zeros(1), "a": np.zeros(1)}), "not a tree"),
        (statistics({"conv1": {10**5000: np.zeros(1)}}), "not a tree"),
        (types.SimpleNamespace(total={}), "not class statistics"),
        (None, "not class statistics"),
    ],
)
def test_door_says_what_is_wrong_with_statistics(upload, reason):
    said = check_statistics(upload, statistics(), 10, clip=2.0)
    assert said is not None and reason in said


def test_door_lets_honest_statistics_with_whole_counts_in():
    assert check_statistics(statistics(), statistics(), 7, clip=2.0) is None
    template = statistics(counts=COUNTS.astype(np.float32))
    assert check_statistics(template, template, 7) is None
    half = statistics(counts=np.array([2, 0, 4.5], np.float32))
    assert "whole" in str(check_statistics(half, template, 7))


def test_reason_is_one_short_printable_line_whatever_the_client_named_things():
    name = "\n2026 client 3 accepted\x1b[2J" + "x" * 500
    upload = statistics({"conv1": HONEST, name: np.zeros(1)})
    said = check_statistics(upload, statistics(), 10)
    assert said is not None and said.isprintable() and len(said) < 200
