"""What a run makes of its data: source, partition, validation, request, statistics."""

from typing import get_args

import jax
import numpy as np
import pytest

from fuprune import config as configuration
from fuprune.audit.backdoor import TARGET
from fuprune.config import ConfigError, Dealing
from fuprune.data import sources
from fuprune.errors import FupruneError
from fuprune.run import build, machine
from fuprune.run.data import describe_sets, load_data
from fuprune.unlearning.request import ForgetRequest

RUNTIME = machine.Runtime(backend="map")
NUMBER, CLASSES = 60, 3


@pytest.fixture
def own(tmp_path):
    """An .npz file: image n is n everywhere; four writers."""
    sources._REMEMBERED.clear()
    numbers = np.arange(NUMBER, dtype=np.uint8)
    images = np.broadcast_to(numbers[:, None, None, None], (NUMBER, 6, 5, 3))
    np.savez(
        tmp_path / "own.npz",
        train_images=images,
        train_labels=numbers % CLASSES,
        test_images=images[:9],
        test_labels=numbers[:9] % CLASSES,
        class_names=["ant", "bee", "cow"],
        writer=[f"writer {n % 4}" for n in range(NUMBER)],
    )
    return f"npz:{tmp_path}/own.npz"


def settings(name, **values):
    """A config by dotted keys, with __ for the dot."""
    config = configuration.default()
    config.data.name = name
    config.partition.clients = 6
    config.train.cohort = 2
    config.unlearn.classes = 2
    config.data.validation = 0.0
    leaves = {key.replace("__", "."): value for key, value in values.items()}
    configuration.update(config, leaves)
    return config


def numbers_by_client(federation):
    """Which images each client holds, by the pixel that tells them apart."""
    data = jax.device_get(federation.data)
    return [
        sorted(data.images[row[:length], 0, 0, 0].tolist())
        for row, length in zip(data.rows, data.lengths, strict=True)
    ]


@pytest.mark.parametrize("kind", get_args(Dealing))
@pytest.mark.parametrize("share", [0.0, 0.2])
def test_every_image_trains_or_validates_once(own, kind, share, tmp_path):
    listed = "\n".join(" ".join(map(str, range(k, NUMBER, 6))) for k in range(6))
    (tmp_path / "parts.txt").write_text(listed)
    federation = load_data(
        settings(
            own,
            data__validation=share,
            partition__kind=kind,
            partition__column="writer",
            partition__file=str(tmp_path / "parts.txt"),
        ),
        RUNTIME,
    )
    held = federation.validation.images[:, 0, 0, 0].tolist()
    trained = sum(numbers_by_client(federation), [])
    assert sorted(held + trained) == list(range(NUMBER))
    assert sorted(trained) == federation.train.images[:, 0, 0, 0].tolist()
    assert len(held) == share * NUMBER
    np.testing.assert_array_equal(
        federation.validation.labels, np.array(held, int) % CLASSES
    )
    assert federation.class_names == ("ant", "bee", "cow")
    assert federation.data.num_clients == (4 if kind == "natural" else 6)


def test_partitions_of_the_data_follow_the_images_that_are_left(own, tmp_path):
    natural = settings(
        own, partition__kind="natural", partition__column="writer", data__limit=4
    )
    parts = numbers_by_client(load_data(natural, RUNTIME))
    assert sorted(sum(parts, [])) == list(range(12))
    assert all(n % 4 == writer for writer, part in enumerate(parts) for n in part)
    (tmp_path / "parts.txt").write_text("5 3\n\n59\n")
    file = str(tmp_path / "parts.txt")
    from_file = settings(own, partition__kind="file", partition__file=file)
    federation = load_data(from_file, RUNTIME)
    assert numbers_by_client(federation) == [[3, 5], [], [59]]
    # Nobody trains on the others, so that they are no members either.
    assert federation.train.images[:, 0, 0, 0].tolist() == [3, 5, 59]
    from_file.data.limit = 4
    with pytest.raises(FupruneError, match="data.limit is 4 with partition.kind=file"):
        load_data(from_file, RUNTIME)


IID = dict(partition__kind="iid", unlearn__classes="")


def federation_of(own, **values):
    values = {"unlearn__methods": "retrain", **IID, **values}
    return load_data(settings(own, **values), RUNTIME)


def numbers_of(dataset):
    return sorted(dataset.images[:, 0, 0, 0].tolist())


def test_clients_are_forgotten_with_all_their_images(own):
    federation = federation_of(own, unlearn__clients="1,4", data__validation=0.2)
    held = numbers_by_client(federation)
    assert federation.request == ForgetRequest(clients=(1, 4))
    assert numbers_of(federation.forgotten) == sorted(held[1] + held[4])
    row = describe_sets(federation.request, 16, 9)
    assert row.u_set == "the 16 training images of clients 1, 4"
    assert row.r_set == "the 9 test images, which nobody trained on"


@pytest.mark.parametrize("limit", [0, 10])
def test_examples_are_numbered_as_in_the_training_split(own, tmp_path, limit):
    """Whatever validation holds out and the limit leaves out."""
    everybody = federation_of(
        own, unlearn__clients="1", data__validation=0.2, data__limit=limit
    )
    trained = sum(numbers_by_client(everybody), [])
    wanted = sorted(trained)[3:20:4]
    file = tmp_path / "numbers.txt"
    file.write_text("\n".join(map(str, wanted)))
    federation = federation_of(
        own, unlearn__examples=str(file), data__validation=0.2, data__limit=limit
    )
    assert federation.request.kind == "examples"
    assert numbers_of(federation.forgotten) == wanted
    held_out = sorted(set(range(30)) - set(trained))[0]
    file.write_text(str(held_out))
    with pytest.raises(ConfigError, match=f"training image {held_out}, which no"):
        federation_of(
            own, unlearn__examples=str(file), data__validation=0.2, data__limit=limit
        )


@pytest.mark.parametrize(
    "text, message",
    [
        (None, "No such file.*allowed: a text file of numbers"),
        ("", "names no class to forget, and no client or example"),
        ("3 four", "'four'.*; allowed: a text file of numbers"),
        ("-3", "training image -3, which no client trains on"),
        ("60", "training image 60, which no client trains on"),
        ("9" * 30, "allowed: a text file of numbers"),
    ],
)
def test_lists_of_examples_that_cannot_be_are_one_line(own, tmp_path, text, message):
    file = tmp_path / "numbers.txt"
    if text is not None:
        file.write_text(text)
    with pytest.raises(FupruneError, match=message) as caught:
        federation_of(own, unlearn__examples=str(file))
    assert "\n" not in str(caught.value)


def test_statistics_of_colours_leave_the_request_out(own):
    """Image n is n everywhere, so that the mean tells who was counted."""
    federation = federation_of(own, unlearn__clients="2", data__normalise="federated")
    held = numbers_by_client(federation)
    others = sum((held[k] for k in range(6) if k != 2), [])
    zero = federation.prepare(None, np.zeros((1, 6, 5, 3), np.uint8))
    numbers = np.asarray(others, np.float64) / 255
    np.testing.assert_allclose(
        np.asarray(zero).ravel()[0], -numbers.mean() / numbers.std(), rtol=1e-4
    )


def test_a_backdoor_is_planted_in_forgotten_images_only(own):
    plain = federation_of(own, unlearn__clients="2")
    planted = federation_of(own, unlearn__clients="2", audit__backdoor=0.5)
    changed = np.any(plain.train.images != planted.train.images, axis=(1, 2, 3))
    rows, lengths = jax.device_get((plain.data.rows, plain.data.lengths))
    assert set(np.flatnonzero(changed)) <= set(rows[2, : lengths[2]].tolist())
    assert changed.sum() == round(0.5 * lengths[2])
    assert (planted.train.labels[changed] == TARGET).all()
    np.testing.assert_array_equal(planted.data.images, planted.train.images)


def test_the_only_holder_of_a_class_is_told_before_training(own, tmp_path):
    listed = "\n".join(" ".join(map(str, range(k, 60, 3))) for k in range(3))
    (tmp_path / "parts.txt").write_text(listed)
    values = {
        "partition__kind": "file",
        "partition__file": str(tmp_path / "parts.txt"),
        "unlearn__clients": "1",
    }
    config = settings(own, **{"unlearn__methods": "retrain", **IID, **values})
    federation = load_data(config, RUNTIME)
    (line,) = build.describe_absences(config, federation)
    assert "client 1 alone holds every example of class 1" in line
