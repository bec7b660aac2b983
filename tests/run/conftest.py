"""Where crafted files are read, and the trace that none of them may leave."""

import pytest


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
