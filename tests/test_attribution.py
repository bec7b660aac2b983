"""Credit for ideas of others, and a warning where forgotten images are trained on."""

import re

import pytest

from fuprune.unlearning import regrow, relabel
from fuprune.unlearning.methods import METHODS

CREDITS = [("relabel", relabel, "Boundary Shrink"), ("regrow", regrow, "EU-k")]
WARNED = r"`?\bprune[ _]relabel\b`?|`?(?<!_)\brelabel\b(?!\.)`?"


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


PAGES = (
    "README.md",
    *(f"docs/{n}.md" for n in ("methods", "results", "results_tables", "prize")),
)


@pytest.mark.parametrize("name", PAGES)
def test_numbers_of_relabel_stand_beside_what_it_trains_on(repository, name):
    """In the same row of a table, or in the same paragraph."""
    for paragraph in (repository / name).read_text().split("\n\n"):
        is_table = paragraph.lstrip().startswith(("|", "<!--"))
        for part in paragraph.splitlines() if is_table else [paragraph]:
            if re.search(WARNED, part) and re.search(r"\d%", part):
                assert "forgotten images" in " ".join(part.split()), part
