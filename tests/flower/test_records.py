import json

import jax
import numpy as np
import pytest
from flwr.app import RecordDict
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save

from fuprune.federated.client import TrainContext
from fuprune.flower.records import MessageError, digest, pack, plain, unpack
from tests.flower.small import said

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


@given(TREES)
def test_another_value_or_form_is_another_digest(tree):
    assert digest({"a": tree}) != digest([tree]) != digest(tree)
    leaves, structure = jax.tree.flatten(tree)
    for i, leaf in enumerate(leaves):
        if leaf.size:
            flipped = leaf.copy()
            flipped.flat[-1] = not flipped.flat[-1]
            changed = [*leaves[:i], flipped, *leaves[i + 1 :]]
            assert digest(jax.tree.unflatten(structure, changed)) != digest(tree)


def saying(form, *arrays):
    named = {str(i): np.asarray(x) for i, x in enumerate(arrays)}
    text = form if isinstance(form, str) else json.dumps(form)
    return said(b"{}", save(named, {"form": text}))


def larger_than_memory():
    head = {"0": {"dtype": "F32", "shape": [10**13], "data_offsets": [0, 4 * 10**13]}}
    text = json.dumps({"__metadata__": {"form": '{"array": 0}'}, **head}).encode()
    return len(text).to_bytes(8, "little") + text


ONE = np.ones(2, np.uint8)


@pytest.mark.parametrize(
    "wrong",
    [
        RecordDict(),
        said(b""),
        said(b"[]"),
        said(b"[" * 50_000),
        said(b"{}", b""),
        said(b"{}", b"PK\x03\x04 and no archive"),
        said(b"{}", larger_than_memory()),
        saying("not json"),
        saying("[" * 50_000),
        saying({"array": 0}),
        saying({"array": 1}, ONE),
        saying({"list": [{"array": 0}, {"array": 0}]}, ONE),
        saying(None, ONE),
        saying({"code": "import os"}),
        saying({"key": 0}, np.ones(7, np.uint32)),
        saying([1]),
        saying({"map": [1]}),
        saying('{"list": [' * 5000 + "null" + "]}" * 5000),
    ],
)
def test_what_is_not_of_this_protocol_is_refused_in_one_line(wrong):
    with pytest.raises(MessageError) as caught:
        unpack(wrong)
    assert "\n" not in str(caught.value)


def test_a_message_that_is_too_long_is_not_read():
    sent = pack({}, np.zeros(1000))
    assert unpack(sent, limit=10_000)
    with pytest.raises(MessageError, match="5000 at most"):
        unpack(sent, limit=5000)
    # Nor is anything pickled.
    with pytest.raises(MessageError, match="cannot travel"):
        pack({}, {"a": np.array([print], object)})
