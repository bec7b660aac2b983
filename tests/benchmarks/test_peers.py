"""The peers compute what we do; needs their environments (`benchmarks/setup.sh`)."""

import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

ROOT = pathlib.Path(__file__).parents[2]
BENCHMARKS = ROOT / "benchmarks"
PYTORCH = ROOT / ".bench" / "pytorch" / "bin" / "python"

ONE_STEP = """
import sys
import numpy as np, torch
import pytorch_net
net = pytorch_net.create(sys.argv[1])
given = np.load(sys.argv[2])
state = net.state_dict()
for name in list(state):
    if name in given:
        state[name] = torch.from_numpy(given[name])
net.load_state_dict(state)
images, labels = pytorch_net.to_tensors(given["images"], given["labels"])
pytorch_net.train_client(
    net, images, labels, batch_size=len(labels), memory_format=torch.channels_last
)
np.savez(sys.argv[3], **{k: v.numpy() for k, v in net.state_dict().items()})
"""


def torch_names(net):
    """Ours -> PyTorch's, for each layer."""
    if net == "vgg11":
        places, at = {}, 0
        for number, pool in enumerate((1, 1, 0, 1, 0, 1, 0, 1), start=1):
            names = (f"features.{at}", f"features.{at + 1}")
            places[f"conv{number}"] = names
            at += 4 if pool else 3
        return places
    places = {"stem": ("stem", "norm")}
    for i in range(9):
        for j in (1, 2):
            layer = f"stage{i // 3 + 1}_block{i % 3 + 1}_conv{j}"
            places[layer] = (f"blocks.{i}.conv{j}", f"blocks.{i}.norm{j}")
    return places


def to_torch(variables, net):
    arrays = {}
    for layer, (conv, norm) in torch_names(net).items():
        params = variables["params"][layer]
        stats = variables["batch_stats"][layer]["norm"]
        arrays[f"{conv}.weight"] = params["conv"]["kernel"].transpose(3, 2, 0, 1)
        arrays[f"{norm}.weight"] = params["norm"]["scale"]
        arrays[f"{norm}.bias"] = params["norm"]["bias"]
        arrays[f"{norm}.running_mean"] = stats["mean"]
    for layer in ("hidden", "head"):
        if layer in variables["params"]:
            arrays[f"{layer}.weight"] = variables["params"][layer]["kernel"].T
            arrays[f"{layer}.bias"] = variables["params"][layer]["bias"]
    return {name: np.ascontiguousarray(x) for name, x in arrays.items()}


@pytest.mark.slow
@pytest.mark.skipif(not PYTORCH.exists(), reason="benchmarks/setup.sh was not run")
@pytest.mark.parametrize("net", ["resnet20", "vgg11"])
def test_pytorch_client_takes_the_same_step(net, tmp_path, monkeypatch):
    # One batch holds all images, so that their order does not matter.
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    import optax
    import workload

    from fuprune.data.preprocess import to_float
    from fuprune.federated.client import TrainContext, local_sgd
    from fuprune.federated.cohort import for_each_client
    from fuprune.federated.program import Client, Shared
    from fuprune.models import zoo

    work = workload.Workload(net, 1, 16, 16, 32)
    images, labels = workload.client_data(work, 0)
    model = zoo.create(net, num_classes=10)
    variables = jax.jit(model.init)(jax.random.key(0), jnp.zeros((1, 32, 32, 3)))
    before = to_torch(jax.device_get(variables), net)
    np.savez(tmp_path / "in.npz", images=images, labels=labels, **before)
    subprocess.run(
        [PYTORCH, "-c", ONE_STEP, net, tmp_path / "in.npz", tmp_path / "out.npz"],
        check=True,
        env={"PYTHONPATH": str(BENCHMARKS / "peers")},
        timeout=300,
    )
    program = local_sgd(
        model,
        optax.sgd(workload.LEARNING_RATE, workload.MOMENTUM),
        local_epochs=1,
        batch_size=16,
        max_length=16,
        preprocess=to_float,
    )
    context = TrainContext(variables, jax.random.key(1), jnp.ones(()), None)
    shared = Shared(jnp.asarray(images), jnp.asarray(labels), context)
    client = Client(jnp.arange(16)[None], jnp.array([16]), jnp.array([0]))
    _, sent = for_each_client(program, backend="loop")(shared, client)
    first = jax.tree.map(lambda x: x[0], sent)
    params = jax.tree.map(jnp.add, variables["params"], first.update)
    ours = to_torch(
        jax.device_get({"params": params, "batch_stats": first.batch_stats}), net
    )
    theirs = np.load(tmp_path / "out.npz")
    for name, value in ours.items():
        # By norm: rounding moves single values across ReLU's zero.
        change = np.linalg.norm(value - before[name])
        assert change > 0, name
        assert np.linalg.norm(theirs[name] - value) < 0.05 * change, name


@pytest.mark.skipif(sys.platform == "win32", reason="a shell script")
def test_setup_names_the_peers_it_knows():
    done = subprocess.run(
        ["bash", BENCHMARKS / "setup.sh", "caffe"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "caffe is unknown; choose from pytorch fedjax" in done.stderr


ECHO = """
import protocol
channel = protocol.claim_output()
print("noise on standard output")
protocol.serve(channel, lambda: None, warm_up=2, versions={"echo": "1"})
"""


@pytest.fixture
def protocol(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCHMARKS / "peers"))
    import protocol

    return protocol


def test_contender_answers_rounds_between_noise(protocol, tmp_path):
    env = {"PYTHONPATH": str(BENCHMARKS / "peers")}
    command = [sys.executable, "-c", ECHO]
    contender = protocol.Contender("echo", command, tmp_path / "log", env)
    assert contender.answer()["versions"] == {"echo": "1"}
    assert all(0 <= contender.round()["seconds"] < 1 for _ in range(3))
    contender.close()
    assert contender.process.poll() is not None
    assert "noise" in (tmp_path / "log").read_text()


def test_contender_that_dies_is_named_with_its_log(protocol, tmp_path):
    command = [sys.executable, "-c", "raise SystemExit(3)"]
    contender = protocol.Contender("mayfly", command, tmp_path / "log")
    with pytest.raises(protocol.ContenderError, match="mayfly ended with code 3; see"):
        contender.answer()
    contender.close()
