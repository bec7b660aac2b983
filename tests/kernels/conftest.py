import pytest

from fuprune.kernels import build, library


@pytest.fixture
def without_onednn(monkeypatch):
    """A machine where the library cannot be had."""

    def missing(folder):
        raise build.BuildError("there is no oneDNN")

    monkeypatch.setattr(build, "load", missing)
    for function in (library.why_not, library.ready):
        function.cache_clear()
    yield
    for function in (library.why_not, library.ready):
        function.cache_clear()
