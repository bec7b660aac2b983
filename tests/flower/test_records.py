import io

import jax
import numpy as np
import pytest
from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict
from hypothesis import given
from hypothesis import strategies as st

from fuprune.federated.client import TrainContext
from fuprune.flower.records import MessageError, digest, pack, plain, unpack

LEAVES = st.builds(
    lambda shape, kind, seed: (
        np.random.default_rng(seed).integers(0, 100, shape).astype(kind)
    ),
    st.lists(st.integers(0, 3), max_size=3).map(tuple),
    st.sampled_from(["float32", "int32", "uint8", "bool", "uint64"]),
    st.integers(0, 99),
)
TREES = st.recursive(
    LEAVES | st.none(),
    lambda child: (
        st.dictionaries(st.text(max_size=5), child, max_size=3)
        | st.lists(child, max_size=3)
        | st.lists(child, max_size=3).map(tuple)
    ),
    max_leaves=8,
)


@given(TREES)
def test_what_is_packed_is_what_is_unpacked(tree):
    header, found = unpack(pack({"a": [1, None, "x"]}, tree))
    assert header == {"a": [1, None, "x"]}
    assert jax.tree.structure(found) == jax.tree.structure(tree)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(tree), strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
    assert digest(found) == digest(tree)


def test_named_tuples_and_typed_keys_travel():
    context = TrainContext({"params": {}}, jax.random.key(3), np.float32(1), None)
    _, found = unpack(pack({}, context))
    again = TrainContext(*found)
    assert again.client_stats is None and again.objective == ()
    np.testing.assert_array_equal(
        jax.random.key_data(again.key), jax.random.key_data(context.key)
    )
    assert plain(context)[0] == {"params": {}}


@given(TREES, st.integers(0, 10**6))
def test_one_changed_value_is_another_digest(tree, place):
    leaves, structure = jax.tree.flatten(tree)
    sizes = [x.size for x in leaves]
    if not sum(sizes):
        return
    chosen = place % sum(sizes)
    changed = [x.copy() for x in leaves]
    for x in changed:
        if chosen < x.size:
            flat = x.reshape(-1)
            flat[chosen] = ~flat[chosen] if x.dtype == bool else flat[chosen] + 1
            break
        chosen -= x.size
    assert digest(jax.tree.unflatten(structure, changed)) != digest(tree)


def test_a_network_travels_as_one_array_for_each_dtype():
    tree = [np.full((2, 3), i, np.float32) for i in range(50)]
    tree += [np.int32(4), np.zeros((0, 3), np.int32)]
    sent = pack({}, tree)
    assert {n: x.numpy().shape for n, x in sent["arrays"].items()} == {
        "<f4": (300,),
        "<i4": (1,),
    }
    text = sent["json"]["text"]
    # One value less or more, another dtype, a negative size.
    for was, false in (
        ("[2, 3]", "[2, 2]"),
        ("[0, 3]", "[1, 3]"),
        ("<i4", "<u4"),
        ("[0, 3]", "[0, -3]"),
    ):
        wrong = RecordDict(
            {
                "json": ConfigRecord({"text": text.replace(was, false)}),
                "arrays": sent["arrays"],
            }
        )
        with pytest.raises(MessageError):
            unpack(wrong)


def content(text, arrays=()):
    named = {x.dtype.str: Array.from_numpy_ndarray(x) for x in arrays}
    return holding(text, named)


def holding(text, named):
    return RecordDict(
        {"json": ConfigRecord({"text": text}), "arrays": ArrayRecord(named)}
    )


ONE = [np.ones(1, np.uint8)]
NOTHING = '{"header": {}, "form": null, "arrays": []}'


def raw(data):
    """A message whose one array is whatever NumPy reads in these bytes."""
    return holding(NOTHING, {"<f4": Array("<f4", (3,), "numpy.ndarray", data)})


def archive():
    file = io.BytesIO()
    np.savez(file, a=np.ones(3, np.float32))
    return file.getvalue()


def larger_than_memory():
    file = io.BytesIO()
    form = {"descr": "<f4", "fortran_order": False, "shape": (10**13,)}
    np.lib.format.write_array_header_1_0(file, form)
    return file.getvalue()


@pytest.mark.parametrize(
    "wrong",
    [
        RecordDict(),
        content("not json"),
        content("[" * 50_000),
        content("[]"),
        content('{"header": [], "form": null, "arrays": []}'),
        content('{"header": {}, "form": null}'),
        content('{"header": {}, "form": {"array": 0}, "arrays": []}'),
        content('{"header": {}, "form": {"array": -1}, "arrays": [["|u1", [1]]]}', ONE),
        content('{"header": {}, "form": {"array": 0}, "arrays": [["|u1", 1]]}', ONE),
        content('{"header": {}, "form": {"array": 0}, "arrays": [["|O", [1]]]}', ONE),
        content('{"header": {}, "form": {"code": "import os"}, "arrays": []}'),
        content('{"header": {}, "form": [1], "arrays": []}'),
        content('{"header": {}, "form": {"map": [1]}, "arrays": []}'),
        raw(archive()),
        raw(b"PK\x03\x04 and no archive"),
        raw(larger_than_memory()),
        content(
            '{"header": {}, "arrays": [], "form": '
            + '{"list": [' * 70
            + "]}" * 70
            + "}"
        ),
    ],
)
def test_what_is_not_of_this_protocol_is_refused_in_one_line(wrong):
    with pytest.raises(MessageError) as caught:
        unpack(wrong)
    assert "\n" not in str(caught.value)


def test_a_pickle_is_never_read():
    class Evil:
        def __reduce__(self):
            return print, ("executed",)

    evil = np.array([Evil()], object)
    with pytest.raises(MessageError):
        pack({}, {"a": evil})
