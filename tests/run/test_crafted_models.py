"""Saved models and programs are data: crafted ones are refused with one error."""

import io
import json
import os
import pickle
import struct
import sys
import zipfile

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuprune.models import zoo
from fuprune.run import checkpoint, export
from fuprune.surgery import layer_names, rebuild
from tests.run.watch import nothing_happens_outside


class Payload:
    """Leaves a directory behind when it is unpickled."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def small_model():
    """A ResNet20 of one channel a layer: kilobytes."""
    whole = zoo.create("resnet20", num_classes=3, input_shape=(8, 8, 1))
    spec = rebuild.spec(whole)
    spec["channels"] = {layer: [0] for layer in layer_names(whole)}
    model = rebuild.from_spec(spec)
    image = jnp.zeros((1, *model.input_shape))
    shapes = jax.eval_shape(model.init, jax.random.key(0), image)
    return model, jax.tree.map(lambda x: np.zeros(x.shape, x.dtype), shapes)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The bytes of a good safetensors file."""
    path = tmp_path_factory.mktemp("saved") / "model.safetensors"
    export.save_safetensors(path, *small_model())
    return path.read_bytes()


def taken_apart(data):
    (length,) = struct.unpack("<Q", data[:8])
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def put_together(header, body, length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + body


def load_model(home, data):
    (home / "model.safetensors").write_bytes(data)
    with nothing_happens_outside(home):
        return checkpoint.load(home)


def with_header(change):
    def craft(data):
        header, body = taken_apart(data)
        return put_together(change(header) or header, body)

    return craft


def with_tensor(name="params/stem/conv/kernel", **fields):
    return with_header(lambda header: header[name].update(fields))


def with_spec(**fields):
    def change(header):
        spec = json.loads(header["__metadata__"]["spec"])
        header["__metadata__"]["spec"] = json.dumps(spec | fields)

    return with_header(change)


def with_spec_text(text):
    return with_header(lambda header: header["__metadata__"].update(spec=text))


def renamed(name):
    def change(header):
        header[name] = header.pop("params/stem/conv/kernel")

    return with_header(change)


def with_length(length):
    return lambda data: put_together(*taken_apart(data), length=length)


def with_header_bytes(text):
    return lambda data: put_together(text, taken_apart(data)[1])


CRAFTED_MODELS = {
    "empty": lambda data: b"",
    "length only": lambda data: data[:8],
    "cut in the data": lambda data: data[:-1],
    "length beyond the file": with_length(10**8),
    "length of 2^64-1": with_length(2**64 - 1),
    "header is not JSON": with_header_bytes(b"{" * 50),
    "header is very deep": with_header_bytes(b"[" * 200_000 + b"]" * 200_000),
    "offsets beyond the file": with_tensor(data_offsets=[0, 2**40]),
    "offsets overlapping": with_tensor(data_offsets=[4, 40]),
    "offsets of 2^64": with_tensor(data_offsets=[2**64, 2**64 + 36]),
    "shape that overflows": with_tensor(shape=[2**33, 2**33, 1, 1]),
    "shape of another layer": with_tensor(shape=[1, 9, 1, 1]),
    "type of the same size": with_tensor(dtype="I32"),
    "type unknown": with_tensor(dtype="OBJECT"),
    "name that climbs": renamed("../../../elsewhere/executed"),
    "name of a method": renamed("params/__class__/__init__"),
    "no metadata": with_header(lambda header: header.pop("__metadata__") and None),
    "another format": with_header(
        lambda header: header["__metadata__"].update(format="pt")
    ),
    "spec is not JSON": with_spec_text("__import__('os').system('true')"),
    "spec is very deep": with_spec_text("[" * 100_000 + "]" * 100_000),
    "spec with a huge number": with_spec_text('{"name": ' + "9" * 5000 + "}"),
    "spec with more keys": with_spec(__class__="os.system"),
    "spec with a module's name": with_spec(name="os.system"),
    "spec with an object as name": with_spec(name={"resnet20": 1}),
    "spec with many classes": with_spec(num_classes=10**9),
    "spec with too huge images": with_spec(input_shape=[10**30, 8, 1]),
    "spec with empty images": with_spec(input_shape=[0, 8, 1]),
    "spec with channels of an unknown layer": with_spec(channels={"../x": [0]}),
    "spec with channels out of range": with_spec(channels={"stem": [99]}),
    "spec with channels twice": with_spec(channels={"stem": [0, 0]}),
    "spec with ensembles in an ensemble": with_spec_text(
        '{"member": {"member": {"name": "resnet8"}, "size": 1000}, "size": 1000}'
    ),
    "spec with huge channels": with_spec(channels={"stem": [10**30]}),
    "spec with channels as text": with_spec(channels={"stem": "0"}),
}


@pytest.mark.parametrize("craft", CRAFTED_MODELS.values(), ids=CRAFTED_MODELS)
def test_a_crafted_model_is_refused_with_one_error(craft, home, trace, saved):
    with pytest.raises(ValueError) as caught:
        load_model(home, craft(saved))
    assert str(caught.value)


def test_a_model_that_diverged_loads_and_says_so(home, saved, caplog):
    header, body = taken_apart(saved)
    loaded = load_model(home, put_together(header, body[:-4] + b"\xff" * 4))
    assert np.isnan(
        np.concatenate([x.ravel() for x in jax.tree.leaves(loaded[1])])
    ).any()
    assert "it diverged" in caplog.text


@pytest.mark.parametrize("nested", [False, True])
def test_a_factory_in_a_models_file_is_not_imported(home, trace, saved, nested):
    sys.path.insert(0, str(home))
    try:
        (home / "crafted_nets.py").write_text(f"import os; os.mkdir({str(trace)!r})")
        spec = {
            "factory": "crafted_nets:make",
            "num_classes": 3,
            "input_shape": [8, 8, 1],
        }
        if nested:
            spec = {"base": spec, "input_shape": [8, 8, 1], "channels": {}}
        with pytest.raises(ValueError, match="factory 'crafted_nets:make'"):
            load_model(home, with_spec_text(json.dumps(spec))(saved))
    finally:
        sys.path.remove(str(home))
    assert "crafted_nets" not in sys.modules


def test_a_pickle_under_a_models_name_is_not_unpickled(home, trace):
    payload = pickle.dumps(Payload(trace))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:  # the form of torch.save
        file.writestr("archive/data.pkl", payload)
    for data in (
        payload,
        archive.getvalue(),
        struct.pack("<Q", len(payload)) + payload,
    ):
        with pytest.raises(ValueError, match="safetensors"):
            load_model(home, data)


@settings(
    max_examples=40,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(
    place=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
    cut=st.sampled_from([None, None, None, 0.1, 0.5, 0.99]),
)
def test_a_damaged_model_loads_in_form_or_is_refused(home, saved, place, byte, cut):
    data = bytearray(saved[: int(len(saved) * (cut or 1))])
    # Half of the damage goes to the header, where the structure is.
    header = 8 + struct.unpack("<Q", saved[:8])[0]
    end = min(len(data), header if byte % 2 else len(data))
    data[int(place * end)] = byte
    try:
        _, variables = load_model(home, bytes(data))
    except ValueError:
        return
    shapes = jax.tree.map(lambda x: x.shape, variables)
    assert shapes == jax.tree.map(lambda x: x.shape, small_model()[1])


def test_a_program_that_calls_out_of_itself_is_refused(home, trace):
    """Such a call reaches native code with what the file says as its arguments."""
    target = "xla_ffi_python_cpu_callback"

    def call_out(x):
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.ffi.ffi_call(target, shape)(x, index=np.uint64(0))

    allowed = [jax.export.DisabledSafetyCheck.custom_call(target)]
    program = jax.export.export(
        jax.jit(call_out), platforms=("cpu",), disabled_checks=allowed
    )(jnp.ones(3))
    (home / "model.stablehlo").write_bytes(program.serialize())
    with nothing_happens_outside(home), pytest.raises(ValueError, match=target):
        export.load_stablehlo(home / "model.stablehlo")
