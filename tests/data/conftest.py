import pathlib

import pytest

from fuprune.data import hf_source, sources


@pytest.fixture
def offline(tmp_path, monkeypatch) -> pathlib.Path:
    """A data directory, with a home of its own and no network but this host."""
    data_dir = tmp_path / "data"
    for name in ("home", "data"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    # A port nobody listens on: refused at once.
    for variable in ("npm_config_registry", "http_proxy", "https_proxy"):
        monkeypatch.setenv(variable, "http://127.0.0.1:9/")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    for variable in ("TFDS_DATA_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    # Tiny sets leave copies, too.
    monkeypatch.setattr(sources, "MANY", 1)
    return data_dir


@pytest.fixture(autouse=True)
def nothing_remembered():
    """Sets are read again, and not taken from an earlier test."""
    sources._REMEMBERED.clear()
    hf_source.open_splits.cache_clear()
