import pytest

from tests.flower.small import make_setting

setting = pytest.fixture(make_setting, scope="module")
