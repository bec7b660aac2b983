"""What a run makes of its data: source, partition, validation share, statistics."""

from typing import get_args

import jax
import numpy as np
import optax
import pytest

from fuprune import config as configuration
from fuprune.config import Dealing
from fuprune.data import normalisation, sources
from fuprune.data.federated import sample_cohort
from fuprune.errors import FupruneError
from fuprune.federated.server import fed_avg
from fuprune.models import zoo
from fuprune.run import data as run_data
from fuprune.run import machine
from fuprune.run.data import load_data
from tests.tiny import TinyNet, tiny_variables

RUNTIME = machine.Runtime(None, "map", "xla", 0, 1)
NUMBER, CLASSES = 60, 3


@pytest.fixture
def own(tmp_path):
    """An .npz file: image n is n everywhere; four writers."""
    sources._read_once.cache_clear()
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


def test_a_column_that_is_not_there_is_named(own):
    config = settings(own, partition__kind="natural")
    with pytest.raises(FupruneError, match="no column 'client'.*are: writer"):
        load_data(config, RUNTIME)


def test_statistics_are_constants_federated_sums_or_central(own):
    def scaled(kind):
        config = settings(own, data__normalise=kind)
        federation = load_data(config, RUNTIME)
        image = np.full((1, 6, 5, 3), 40, np.uint8)
        return federation, float(federation.prepare(None, image)[0, 0, 0, 0])

    _, constants = scaled("constants")
    assert constants == pytest.approx((40 / 255 - 0.5) / 0.25, abs=1e-5)
    federation, federated = scaled("federated")
    kept = federation.train.images[federation.train.labels != 2]
    mean, std = normalisation.channel_statistics(kept)
    assert federated == pytest.approx((40 / 255 - mean[0]) / std[0], abs=1e-4)
    _, central = scaled("central")
    mean, std = normalisation.channel_statistics(federation.train.images)
    assert central == pytest.approx((40 / 255 - mean[0]) / std[0], abs=1e-4)
    assert abs(central - federated) > 1e-3


def test_images_that_do_not_fit_are_refused_in_one_line(own, monkeypatch):
    monkeypatch.setattr(run_data, "free_memory", lambda: 1_000)
    with pytest.raises(FupruneError) as error:
        load_data(settings(own), RUNTIME)
    text = str(error.value)
    assert "\n" not in text and "shape (6, 5, 3) take 6.0 kB in this" in text
    assert "but 1.0 kB are free" in text


@pytest.mark.slow
def test_large_and_oblong_images_train(tmp_path):
    """Twice as wide as high, and larger than CIFAR's."""
    sources._read_once.cache_clear()
    rng = np.random.default_rng(0)
    images = rng.integers(256, size=(12, 36, 72), dtype=np.uint8)
    np.savez(tmp_path / "wide.npz", images=images, labels=np.arange(12) % 2)
    config = settings(f"npz:{tmp_path}/wide.npz", partition__kind="iid")
    federation = load_data(config, RUNTIME)
    algorithm = fed_avg(
        TinyNet(num_classes=2),
        client_optimizer=optax.sgd(0.1),
        batch_size=2,
        backend="map",
        preprocess=federation.prepare_training,
    )
    state = algorithm.init(tiny_variables(TinyNet(num_classes=2)))
    cohort = sample_cohort(jax.random.key(0), federation.data, 2)
    state, info = algorithm.round(state, cohort, jax.random.key(1))
    assert np.isfinite(info.loss) and info.participants == 2


@pytest.mark.parametrize("name", ["resnet20", "vgg11"])
@pytest.mark.parametrize("shape", [(64, 64, 3), (128, 96, 1)])
def test_networks_of_the_zoo_take_large_images(name, shape):
    model = zoo.create(name, num_classes=7, input_shape=shape)
    images = jax.ShapeDtypeStruct((2, *shape), np.float32)
    variables = jax.eval_shape(model.init, jax.random.key(0), images)
    assert jax.eval_shape(model.apply, variables, images).shape == (2, 7)
