import gzip

import numpy as np
import pytest

from fuprune import main
from fuprune.data.dataset import DamagedDataError, DataUnavailableError
from fuprune.data.sources import load
from tests.data import tiny_sets

pytestmark = pytest.mark.usefixtures("offline")


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize(
    ("name", "folder"),
    [
        ("mnist", "mnist"),
        ("mnist", "MNIST/raw"),
        ("mnist", "downloads/manual/mnist"),
        ("mnist", "."),
        ("fashion_mnist", "fashion-mnist"),
    ],
)
def test_idx_files_are_read_where_others_keep_them(offline, name, folder, compress):
    train, test = (tiny_sets.draw(7, (28, 28, 1), seed=seed) for seed in (0, 1))
    tiny_sets.write_idx(offline / folder, train, test, compress)
    tiny_sets.assert_same(load(name, split="train", data_dir=offline), train)
    tiny_sets.assert_same(load(name, split="test", data_dir=offline), test)


def test_files_of_one_set_are_not_taken_for_another(offline, monkeypatch):
    """MNIST's family shares names: only a directory of its own tells them apart."""
    monkeypatch.setenv("TFDS_DATA_DIR", str(offline))
    tiny_sets.write_idx(offline, GOOD, GOOD)
    with pytest.raises(DataUnavailableError, match="is unavailable here"):
        load("mnist", split="train")


IMAGES, LABELS = "train-images-idx3-ubyte", "train-labels-idx1-ubyte"
GOOD = tiny_sets.draw(5, (28, 28, 1))
IMAGE_BYTES = tiny_sets.idx_bytes(GOOD.images[..., 0])


@pytest.mark.parametrize(
    ("file", "blob", "message"),
    [
        (IMAGES, b"", "not a whole IDX file of 3"),
        (IMAGES, b"\x89PNG" + IMAGE_BYTES[4:], "begins with 89504e47"),
        (IMAGES, tiny_sets.idx_bytes(GOOD.labels), "not a whole IDX file"),
        (IMAGES, IMAGE_BYTES[:-1], "array of size 3919 into shape"),
        (IMAGES, gzip.compress(IMAGE_BYTES)[:-20], "not a whole IDX file"),
        (LABELS, None, f"{LABELS}.gz is missing"),
        (LABELS, tiny_sets.idx_bytes(np.arange(4)), r"shape \(4,\)"),
        (LABELS, tiny_sets.idx_bytes(np.array([0, 1, 2, 3, 10])), "go up to 10"),
    ],
)
def test_damaged_files_are_named_in_one_line(offline, file, blob, message):
    tiny_sets.write_idx(offline / "mnist", GOOD, GOOD)
    path = offline / "mnist" / file
    path.unlink() if blob is None else path.write_bytes(blob)
    with pytest.raises(DamagedDataError, match=message) as caught:
        load("mnist", split="train", data_dir=offline)
    assert str(caught.value).startswith(str(path.parent))
    assert "\n" not in str(caught.value)


def test_damaged_data_end_a_run_before_it_writes(offline, tmp_path, capsys):
    """Exit code 2, one line that names the file, and no half-written workdir."""
    tiny_sets.write_idx(offline / "mnist", GOOD, GOOD)
    (offline / "mnist" / IMAGES).write_bytes(IMAGE_BYTES[:-1])
    workdir = tmp_path / "run"
    flags = ["--config.data.name=mnist", f"--config.data.dir={offline}"]
    flags += ["--config.runtime.conv=xla", "--config.runtime.compilation_cache="]
    assert main.main(["fuprune", f"--workdir={workdir}", *flags]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if "error:" in x]
    assert IMAGES in line and "Traceback" not in line
    left = {path.name for path in workdir.iterdir()}
    assert not left & {"config.json", "metrics.jsonl", "checkpoints", "units"}
