"""Every file the package reads is data: crafted ones are tried, one kind after another.

While a crafted file is read, an audit hook of the interpreter watches for unpickled
classes, programs started, libraries loaded, connections, and writes outside the
directory in hand. Payloads would also leave a trace behind if they ever ran.
"""

import ast
import contextlib
import html.parser
import io
import json
import os
import pathlib
import pickle
import random
import resource
import struct
import sys
import zipfile
import zlib

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fuprune import config, export, report
from fuprune.audit.evidence import AuditReport
from fuprune.data import cache
from fuprune.data.dataset import Dataset
from fuprune.errors import FupruneError
from fuprune.models import zoo
from fuprune.run import checkpoint, files, logs
from fuprune.run.record import TrainedOutcome
from tests.report import fixture
from tests.settings import quickstart

FORBIDDEN_EVENTS = {
    "pickle.find_class",
    "os.system",
    "os.exec",
    "os.fork",
    "os.forkpty",
    "os.posix_spawn",
    "os.spawn",
    "subprocess.Popen",
    "socket.connect",
    "ctypes.dlopen",
}
# Events that change the disk, and which of their arguments are the paths changed.
CHANGING_EVENTS = {
    "os.mkdir": (0,),
    "os.remove": (0,),
    "os.rmdir": (0,),
    "os.rename": (0, 1),
    "os.link": (1,),
    "os.symlink": (1,),
    "os.truncate": (0,),
    "os.chmod": (0,),
}


class Watch:
    """Collects what happens outside `home` while it is switched on."""

    def __init__(self):
        self.home = None
        self.seen = []

    def hook(self, event, arguments):
        if self.home is None:
            return
        if event in FORBIDDEN_EVENTS:
            self.seen.append((event, str(arguments)[:200]))
        elif event in CHANGING_EVENTS:
            for position in CHANGING_EVENTS[event]:
                self.check(event, arguments[position])
        elif event == "open":
            path, mode, flags = arguments
            writes = (flags or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
            if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
                self.check(event, path)

    def check(self, event, path):
        if isinstance(path, (str, bytes, os.PathLike)):
            folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))
            path = os.path.join(os.path.realpath(folder), name)
            if event == "open":  # the others act on a link and do not follow it
                path = os.path.realpath(path)
            if not path.startswith((self.home, *CACHES)):
                self.seen.append((event, path))


# Compiled programs are kept there, whatever is read.
CACHES = tuple(
    os.path.realpath(place)
    for place in (os.environ.get("JAX_COMPILATION_CACHE_DIR"), "/dev/null")
    if place
)
WATCH = Watch()
sys.addaudithook(WATCH.hook)  # a hook cannot be removed, so there is only one


@contextlib.contextmanager
def nothing_happens_outside(home):
    """Also when what is done inside raises."""
    WATCH.home, WATCH.seen = os.path.realpath(home), []
    try:
        yield
    finally:
        WATCH.home = None
        assert WATCH.seen == []


@contextlib.contextmanager
def bounded_memory(more=4 * 2**30):
    """A file that asks for more gets a MemoryError, and not the whole machine."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.setrlimit(resource.RLIMIT_AS, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


class Payload:
    """Leaves a directory behind when it is unpickled."""

    def __init__(self, trace):
        self.trace = str(trace)

    def __reduce__(self):
        return os.mkdir, (self.trace,)


@pytest.fixture
def trace(tmp_path):
    """What must not be there in the end."""
    path = tmp_path / "elsewhere" / "executed"
    path.parent.mkdir()
    yield path
    assert not path.exists()
    assert list(path.parent.iterdir()) == []


@pytest.fixture
def home(tmp_path):
    """Where reading may write."""
    path = tmp_path / "home"
    path.mkdir()
    return path


def test_the_watch_would_notice(home, tmp_path):
    for act in (
        lambda: pickle.loads(pickle.dumps(Payload(home / "a"))),
        lambda: (tmp_path / "b").write_text(""),
        lambda: (tmp_path / "c").mkdir(),
        lambda: os.symlink(home, tmp_path / "d"),
        lambda: os.system("true"),
    ):
        with pytest.raises(AssertionError), nothing_happens_outside(home):
            act()
    with nothing_happens_outside(home):
        (home / "fine").write_text("")


# Source


FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
    "torch",
    "code",
    "codeop",
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "runpy.run_path",
    "pickle.load",
    "yaml.load",
    "np.fromregex",
}
# A file handed to these becomes code, so each has one known place and reason.
KNOWN_PLACES = {
    "import_module": {
        "__init__.py",  # the package's own public names
        "models/brought.py",  # a factory that the caller or the run's config names
    },
    "exec_module": {"run/config_loading.py"},  # a config file named on the command line
    "CDLL": {"kernels/build.py"},  # the kernels' own library
    "subprocess": {
        "kernels/build.py",  # the compiler
        "data/cifar10_npm.py",  # npm
        "run/machine.py",  # git, for the commit
        "run/processes.py",  # the type of the witness's handle
        "run/witnesses.py",  # the shell that says why a process ended
    },
}


def sources():
    root = pathlib.Path(export.__file__).parent
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text("utf-8"))


def dotted(node):
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def constant(call, name):
    for keyword in call.keywords:
        if keyword.arg == name and isinstance(keyword.value, ast.Constant):
            return keyword.value.value
    return None


def complaints(name, tree):
    """What in a module could turn a file into code."""
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            if module.split(".")[0] in FORBIDDEN_MODULES:
                yield f"{name}:{node.lineno} imports {module}"
            if module == "subprocess" and name not in KNOWN_PLACES["subprocess"]:
                yield f"{name}:{node.lineno} imports subprocess"
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        last = called.split(".")[-1]
        if called in FORBIDDEN_CALLS:
            yield f"{name}:{node.lineno} calls {called}"
        if called in ("np.load", "numpy.load", "jnp.load"):
            if constant(node, "allow_pickle") is not False:
                yield f"{name}:{node.lineno} loads arrays without allow_pickle=False"
        elif constant(node, "allow_pickle") or constant(node, "shell"):
            yield f"{name}:{node.lineno} passes allow_pickle or shell"
        if last in ("extractall", "unpack_archive") or called.endswith("tar.extract"):
            yield f"{name}:{node.lineno} unpacks an archive by the names in it"
        if ast.unparse(node).endswith("CDLL(None)"):
            continue  # the process itself, not a file
        if last in KNOWN_PLACES and name not in KNOWN_PLACES[last]:
            yield f"{name}:{node.lineno} calls {called}"


def test_nothing_in_the_package_can_turn_a_file_into_code():
    found = [line for name, tree in sources() for line in complaints(name, tree)]
    assert found == []
    assert len(list(sources())) > 30


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "import yaml",
        "eval('1')",
        "exec('1')",
        "np.load('x')",
        "np.load('x', allow_pickle=True)",
        "loader.exec_module(module)",
        "tar.extractall()",
        "import subprocess",
        "f(shell=True)",
        "ctypes.CDLL('x')",
        "importlib.import_module('x')",
    ],
)
def test_the_search_of_the_source_finds_what_it_looks_for(text):
    assert list(complaints("x.py", ast.parse(text)))


# Saved models


def small_model():
    """A ResNet20 of one channel a layer: kilobytes."""
    whole = zoo.create("resnet20", num_classes=3, input_shape=(8, 8, 1))
    spec = zoo.spec(whole)
    spec["channels"] = {layer: [0] for layer in zoo.layer_names(whole)}
    model = zoo.from_spec(spec)
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
    with nothing_happens_outside(home), bounded_memory():
        return checkpoint.load(home)


def test_a_good_model_loads(home, saved):
    model, variables = load_model(home, saved)
    assert model == small_model()[0]
    assert jax.tree.structure(variables) == jax.tree.structure(small_model()[1])


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
    "seven bytes": lambda data: data[:7],
    "length only": lambda data: data[:8],
    "cut in the header": lambda data: data[:100],
    "cut in the data": lambda data: data[:-1],
    "more than the data": lambda data: data + b"\0",
    "length of zero": with_length(0),
    "length beyond the file": with_length(10**8),
    "length of 2^63": with_length(2**63),
    "length of 2^64-1": with_length(2**64 - 1),
    "header is a list": with_header_bytes(b"[]"),
    "header is not JSON": with_header_bytes(b"{" * 50),
    "header is not UTF-8": with_header_bytes(b'{"\xff\xfe": 1}'),
    "header is very deep": with_header_bytes(b"[" * 200_000 + b"]" * 200_000),
    "header is empty": with_header_bytes(b"{}"),
    "offsets beyond the file": with_tensor(data_offsets=[0, 2**40]),
    "offsets negative": with_tensor(data_offsets=[-36, 0]),
    "offsets backwards": with_tensor(data_offsets=[36, 0]),
    "offsets overlapping": with_tensor(data_offsets=[4, 40]),
    "offsets of 2^64": with_tensor(data_offsets=[2**64, 2**64 + 36]),
    "offsets of text": with_tensor(data_offsets="0, 36"),
    "shape that overflows": with_tensor(shape=[2**33, 2**33, 1, 1]),
    "shape negative": with_tensor(shape=[-3, -3, 1, 1]),
    "shape of another layer": with_tensor(shape=[1, 9, 1, 1]),
    "type of another size": with_tensor(dtype="F64"),
    "type of the same size": with_tensor(dtype="I32"),
    "type unknown": with_tensor(dtype="OBJECT"),
    "name that climbs": renamed("../../../elsewhere/executed"),
    "name that is a path": renamed("/tmp/executed"),
    "name that climbs from inside": renamed("params/../../../elsewhere/executed"),
    "name with a NUL": renamed("params/stem/conv/kernel\0"),
    "name that is empty": renamed(""),
    "name of a method": renamed("params/__class__/__init__"),
    "no metadata": with_header(lambda header: header.pop("__metadata__") and None),
    "metadata is a list": with_header(lambda header: header | {"__metadata__": []}),
    "another format": with_header(
        lambda header: header["__metadata__"].update(format="pt")
    ),
    "spec is not JSON": with_spec_text("__import__('os').system('true')"),
    "spec is null": with_spec_text("null"),
    "spec is a list": with_spec_text("[]"),
    "spec is NaN": with_spec_text("NaN"),
    "spec is very deep": with_spec_text("[" * 100_000 + "]" * 100_000),
    "spec with a huge number": with_spec_text('{"name": ' + "9" * 5000 + "}"),
    "spec with more keys": with_spec(__class__="os.system"),
    "spec with a module's name": with_spec(name="os.system"),
    "spec with a name of another type": with_spec(name=["resnet20"]),
    "spec with an object as name": with_spec(name={"resnet20": 1}),
    "spec with no name": with_spec(name=None),
    "spec of another model": with_spec(name="vgg11"),
    "spec with a norm of another type": with_spec(norm={}),
    "spec with many classes": with_spec(num_classes=10**9),
    "spec with too many classes": with_spec(num_classes=10**30),
    "spec with no classes": with_spec(num_classes=0),
    "spec with true classes": with_spec(num_classes=True),
    "spec with text as classes": with_spec(num_classes="3"),
    "spec with huge images": with_spec(input_shape=[2**31, 2**31, 1]),
    "spec with too huge images": with_spec(input_shape=[10**30, 8, 1]),
    "spec with empty images": with_spec(input_shape=[0, 8, 1]),
    "spec with flat images": with_spec(input_shape=[8, 8]),
    "spec with channels of an unknown layer": with_spec(channels={"../x": [0]}),
    "spec with channels out of range": with_spec(channels={"stem": [99]}),
    "spec with negative channels": with_spec(channels={"stem": [-1]}),
    "spec with channels twice": with_spec(channels={"stem": [0, 0]}),
    "spec with no channels": with_spec(channels={"stem": []}),
    "spec with huge channels": with_spec(channels={"stem": [10**30]}),
    "spec with channels as a list": with_spec(channels=[["stem", [0]]]),
    "spec with channels as text": with_spec(channels={"stem": "0"}),
}


@pytest.mark.parametrize("craft", CRAFTED_MODELS.values(), ids=CRAFTED_MODELS)
def test_a_crafted_model_is_refused_with_one_error(craft, home, trace, saved):
    with pytest.raises(ValueError) as caught:
        load_model(home, craft(saved))
    assert str(caught.value)


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
            spec = {"base": spec, "input_shape": [8, 8, 1], "cuts": []}
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


def test_a_program_file_that_is_none_is_refused(home, trace):
    for data in (
        b"",
        b"\0" * 64,
        pickle.dumps(Payload(trace)),
        random.Random(0).randbytes(4000),
        b"ML\xefR" + b"\0" * 100,
    ):
        (home / "model.stablehlo").write_bytes(data)
        with nothing_happens_outside(home), pytest.raises(ValueError):
            export.load_stablehlo(home / "model.stablehlo")


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


# Arrays


def npy_of(value):
    buffer = io.BytesIO()
    np.save(buffer, np.array([value], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def npy_header(text):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text


def crafted_arrays(trace):
    yield "pickle", pickle.dumps(Payload(trace))
    yield "object array", npy_of(Payload(trace))
    yield "code as header", npy_header(b"__import__('os').system('touch x')\n")
    yield (
        "call in header",
        npy_header(
            b"{'descr': open('x', 'w'), 'fortran_order': False, 'shape': (1,)}\n"
        ),
    )
    yield (
        "huge shape",
        npy_header(b"{'descr': '|u1', 'fortran_order': False, 'shape': (1<<60,)}\n"),
    )
    yield (
        "vast shape",
        npy_header(
            b"{'descr': '|u1', 'fortran_order': False, 'shape': (%d, %d)}\n"
            % (2**62, 2**62)
        ),
    )
    yield "deep header", npy_header(b"(" * 5000 + b"\n")
    yield "empty", b""


def kept_copy(directory):
    dataset = Dataset(np.zeros((4, 8, 8, 1), np.uint8), np.arange(4, dtype=np.int32))
    cache.write(
        [directory], "train", dataset, class_names=["a", "b", "c", "d"], origin=[]
    )
    assert cache.read([directory], "train") is not None


def test_a_crafted_copy_of_a_dataset_is_not_used(home, trace):
    for name, data in crafted_arrays(trace):
        for part in ("images", "labels"):
            kept_copy(home)
            (home / f"train_{part}.npy").write_bytes(data)
            note = json.loads((home / "train.json").read_text())
            note[part]["crc32"] = zlib.crc32(data)
            (home / "train.json").write_text(json.dumps(note))
            with nothing_happens_outside(home):
                assert cache.read([home], "train") is None, name


@pytest.mark.parametrize(
    "note",
    [
        b"",
        b"null",
        b"[]",
        b"\xff",
        b'{"format": 1}',
        b'{"format": 1, "origin": [], "images": {}, "labels": {}, "class_names": 3}',
        b'{"format": 1, "origin": {"../../../etc/passwd": 0}, "class_names": []}',
        b'{"format": 1, "origin": {"\\u0000": 0}, "class_names": []}',
        b"[" * 100_000 + b"]" * 100_000,
    ],
)
def test_a_crafted_note_of_a_dataset_is_not_believed(home, trace, note):
    kept_copy(home)
    (home / "train.json").write_bytes(note)
    with nothing_happens_outside(home):
        assert cache.read([home], "train") is None


# Checkpoints


TREE = {"weights": np.arange(6, dtype=np.float32), "round": np.int32(3)}


def restore(directory):
    with nothing_happens_outside(directory.parent):
        return checkpoint.restore(
            directory, lambda spec: jax.tree.map(np.zeros_like, TREE)
        )


def write_sums(directory, step):
    """What somebody who can write the files can also do: make the sums agree."""
    checkpoint._write_manifest(directory, step)


def test_a_good_checkpoint_restores(home):
    checkpoint.save(home / "c", 1, TREE, spec={"a": 1})
    step, tree, spec = restore(home / "c")
    assert (step, spec) == (1, {"a": 1})
    np.testing.assert_array_equal(tree["weights"], TREE["weights"])


def test_pickles_in_place_of_a_checkpoints_files_are_never_unpickled(home, trace):
    checkpoint.save(home / "c", 1, TREE, spec={})
    files = sorted(p for p in (home / "c" / "1").rglob("*") if p.is_file())
    assert len(files) > 3
    for path in files:
        good = path.read_bytes()
        path.write_bytes(pickle.dumps(Payload(trace)))
        write_sums(home / "c", 1)
        # What orbax makes of it is its own affair, so long as nothing runs.
        with contextlib.suppress(Exception):
            restore(home / "c")
        assert not WATCH.seen
        path.write_bytes(good)


def test_a_spec_is_only_ever_json(home, trace):
    spec = {
        "__reduce__": ["os.system", ["touch " + str(trace)]],
        "py/object": "os.system",
        "!!python/object/apply:os.system": ["true"],
        "name": "__import__('os').system('true')",
    }
    checkpoint.save(home / "c", 1, TREE, spec=spec)
    assert restore(home / "c")[2] == spec


def test_sums_that_name_files_elsewhere_make_a_checkpoint_unusable(home, trace):
    checkpoint.save(home / "c", 1, TREE, spec={})
    manifest = home / "c" / "1.sha256.json"
    for name in ("../../../../etc/passwd", "/etc/passwd", str(trace), "\0"):
        manifest.write_text(json.dumps({name: "0" * 64}))
        assert restore(home / "c") is None
    for text in ("null", "[]", '"x"', "", "\x00"):
        manifest.write_text(text)
        assert restore(home / "c") is None


def test_a_step_that_is_a_link_does_not_lead_a_save_outside(home, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("keep")
    checkpoint.save(home / "c", 1, TREE, spec={})
    (home / "c" / "0").symlink_to(outside, target_is_directory=True)
    write_sums(home / "c", 0)
    with nothing_happens_outside(home), contextlib.suppress(OSError):
        checkpoint.save(home / "c", 2, TREE, spec={}, keep=1)
    assert (outside / "precious").read_text() == "keep"
    assert [path.name for path in outside.iterdir()] == ["precious"]


# JSON that a run wrote


DEEP = "[" * 100_000 + "]" * 100_000
CRAFTED_JSON = {
    "empty": "",
    "null": "null",
    "list": "[]",
    "text": "\"__import__('os')\"",
    "nan": "NaN",
    "infinity": '{"offset": Infinity, "outcome": {}}',
    "huge number": '{"offset": ' + "9" * 5000 + ', "outcome": {}}',
    "pickled": "cos\nsystem\n(S'true'\ntR.",
    "yaml": "!!python/object/apply:os.system ['true']",
    "wrong types": '{"offset": [], "outcome": 3, "config": 1, "format": {}}',
    "half": '{"offset": 1, "outcome": {',
    "very deep": DEEP,
}


@pytest.mark.parametrize("text", CRAFTED_JSON.values(), ids=CRAFTED_JSON)
def test_crafted_records_of_a_run_are_one_error(home, trace, text):
    path = files.path_of(home, "pretrain")
    path.parent.mkdir()
    path.write_text(text)
    with nothing_happens_outside(home), pytest.raises(FupruneError):
        files.finished(home, "pretrain", TrainedOutcome)
    with nothing_happens_outside(home), pytest.raises(ValueError):
        AuditReport.from_json(text)
    (home / "metrics.jsonl").write_text(text + "\n")
    if not text.startswith("{") or text.endswith("{"):
        with nothing_happens_outside(home), pytest.raises(ValueError):
            files.read_rows(home / "metrics.jsonl")


def test_metrics_are_json_and_nothing_else(home, trace):
    path = home / "metrics.jsonl"
    row = {"phase": "__import__('os').system('true')", "__class__": "os.system"}
    path.write_text(json.dumps(row) + "\n" + '{"phase": "cut')
    with nothing_happens_outside(home):
        assert files.read_rows(path) == [row]
    for line in (DEEP, "\x00", "{'single': 'quotes'}", "os.system('true')", "1 2"):
        path.write_text(line + "\n")
        with nothing_happens_outside(home), pytest.raises(ValueError, match="line 1"):
            files.read_rows(path)


@pytest.mark.parametrize("text", CRAFTED_JSON.values(), ids=CRAFTED_JSON)
def test_a_run_does_not_start_on_a_crafted_record_of_its_config(home, trace, text):
    (home / "config.json").write_text(text)
    with nothing_happens_outside(home), pytest.raises(FupruneError):
        files.refuse_other_config(home, quickstart())
    assert [path.name for path in home.iterdir()] == ["config.json"]


@pytest.mark.parametrize("name", ["metrics.jsonl", ".lock"])
def test_a_link_in_place_of_a_runs_file_is_not_written_through(home, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("keep, and without a last newline")
    (home / name).symlink_to(victim)
    with contextlib.suppress(FupruneError):
        if name == ".lock":
            with files.WorkdirLock(home):
                pass
        else:
            with logs.MetricsLog(home / name) as log:
                log.append({"phase": "pretrain", "round": 1})
    assert victim.read_text() == "keep, and without a last newline"


STRANGE_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(10**40), 10**40)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["__import__('os').system('true')", "../../x", "$(true)", "\0"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=4,
)


@settings(max_examples=150)
@given(data=st.data())
def test_a_crafted_config_file_validates_or_is_one_error(data):
    values = config.to_json(quickstart())
    section = data.draw(st.sampled_from(sorted(values)))
    strange = data.draw(STRANGE_VALUES)
    if isinstance(values[section], dict) and data.draw(st.booleans()):
        key = data.draw(st.sampled_from([*sorted(values[section]), "__class__"]))
        values[section][key] = strange
    else:
        values[section] = strange
    with nothing_happens_outside("/nonexistent"):
        try:
            config.validate(config.from_json(values))
        except config.ConfigError as error:
            assert str(error)


# Reports


SCRIPTS = (
    "<script>document.title='executed'</script>",
    "<img src=x onerror=executed()>",
    "\"><svg onload='executed()'>",
    "</style></title></script><script>executed()</script>",
    "javascript:executed()",
    "' onmouseover='executed()",
    "<!-- --><iframe srcdoc='<script>executed()</script>'>",
    "\x00\x1b[2J\u202e\ud800executed",
    '=HYPERLINK("http://example.com/executed")',
    "[x](javascript:executed()) | `a` | <b>",
    "../../../elsewhere/executed",
    "]]><script>executed()</script>",
    "&lt;script&gt;executed()",
)


class Reader(html.parser.HTMLParser):
    """What a browser would act on."""

    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.scripts, self.elements, self.handlers, self.links = [], set(), [], []
        self.inside = None

    def handle_starttag(self, tag, attrs):
        self.inside = tag
        self.elements.add(tag)
        for name, value in attrs:
            if name.startswith("on") or name in ("srcdoc", "formaction"):
                self.handlers.append((tag, name, value))
            if name in ("href", "src", "action", "xlink:href", "data"):
                self.links.append(value or "")

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts.append(data)

    def handle_endtag(self, tag):
        self.inside = None


def read_page(text):
    reader = Reader()
    reader.feed(text)
    reader.close()
    return reader


def poisoned(value, payload):
    """The same JSON with the payload in every string and key, numbers untouched."""
    if isinstance(value, dict):
        return {key: poisoned(item, payload) for key, item in value.items()} | {
            payload: payload
        }
    if isinstance(value, list):
        return [poisoned(item, payload) for item in value]
    if isinstance(value, str):
        return value + payload
    return value


def test_a_report_shows_what_a_file_says_and_obeys_none_of_it(home, trace):
    plain = fixture.write_run(home / "plain")
    report.build(plain)
    honest = read_page((plain / "report" / "report.html").read_text("utf-8"))
    for number, payload in enumerate(SCRIPTS):
        run = fixture.write_run(home / f"run{number}")
        for name in ("config.json", "results.json", "audit.json"):
            value = json.loads((run / name).read_text("utf-8"))
            text = json.dumps(poisoned(value, payload))
            (run / name).write_text(text, "utf-8")
        rows = (run / "metrics.jsonl").read_text("utf-8").splitlines()
        rows = [json.dumps(poisoned(json.loads(row), payload)) for row in rows]
        (run / "metrics.jsonl").write_text("\n".join(rows) + "\n", "utf-8")
        with nothing_happens_outside(run):
            report.build(run)
        page = read_page((run / "report" / "report.html").read_text("utf-8"))
        assert page.scripts == honest.scripts
        assert page.handlers == honest.handlers == []
        assert page.elements <= honest.elements
        assert "iframe" not in page.elements
        for link in page.links:
            assert link.startswith(("#", "data:image/png;base64,")), link
        for path in (run / "report").glob("*.csv"):
            for line in path.read_text("utf-8").splitlines():
                assert not line.startswith(("=", "@", "\t"))
                assert ",=" not in line


def test_a_report_survives_files_of_any_content(home, trace):
    names = ["config.json", "results.json", "audit.json", "metrics.jsonl"]
    whole = fixture.write_run(home / "run")
    good = {name: (whole / name).read_text("utf-8") for name in names}
    attacks = [(names, text) for text in CRAFTED_JSON.values()]
    attacks += [([name], CRAFTED_JSON["wrong types"]) for name in names]
    for attacked, text in attacks:
        for name in names:
            (whole / name).write_text(text if name in attacked else good[name])
        with nothing_happens_outside(whole):
            report.build(whole)
        assert (whole / "report" / "report.html").is_file()


def test_pickled_feature_maps_are_not_unpickled(home, trace):
    run = fixture.write_run(home / "run")
    for name, data in crafted_arrays(trace):
        archive = io.BytesIO()
        with zipfile.ZipFile(archive, "w") as file:
            for member in ("images", "activations", "maps", "../../elsewhere/executed"):
                file.writestr(f"{member}.npy", data)
        for content in (archive.getvalue(), data):
            (run / "feature_maps.npz").write_bytes(content)
            with nothing_happens_outside(run):
                report.build(run)
            assert (run / "report" / "report.html").is_file(), name


def test_a_report_folder_that_leads_elsewhere_is_refused(home, trace):
    run = fixture.write_run(home / "run")
    (run / "report").symlink_to(trace.parent, target_is_directory=True)
    with nothing_happens_outside(run), pytest.raises(ValueError, match="link"):
        report.build(run)


def test_a_link_in_the_report_folder_is_replaced_and_not_followed(home, tmp_path):
    run = fixture.write_run(home / "run")
    victim = tmp_path / "victim"
    victim.write_text("keep")
    (run / "report").mkdir()
    (run / "report" / "report.html").symlink_to(victim)
    with nothing_happens_outside(run):
        report.build(run)
    assert victim.read_text() == "keep"
    assert not (run / "report" / "report.html").is_symlink()
