"""Credit for ideas of others; methods that train on forgotten images are known."""

import re

import pytest

from fuprune.unlearning import regrow, relabel
from fuprune.unlearning.methods import METHODS

CREDITS = [("relabel", relabel, "Boundary Shrink"), ("regrow", regrow, "EU-k")]


@pytest.mark.parametrize(("name", "module", "credit"), CREDITS)
def test_methods_after_others_credit_them(repository, name, module, credit):
    assert credit in module.__doc__
    page = (repository / "docs" / "methods.md").read_text()
    (row,) = (line for line in page.splitlines() if line.startswith(f"| `{name}` | g"))
    assert f"(after {credit})" in row
    (paragraph,) = re.findall(rf"^\*\*`{name}`\*\*.*?\n\n", page, re.M | re.S)
    assert credit in paragraph


def test_methods_that_train_on_forgotten_images_are_known():
    found = {name for name, method in METHODS.items() if method.trains_on_forgotten}
    assert found == {"relabel", "prune_relabel"}
