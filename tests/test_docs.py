"""What the documents tell people to run does run, and what they link to is there."""

import importlib.util
import re

import pytest


def load_example(repository):
    """The embedding example as a module."""
    path = repository / "docs" / "embedding_example.py"
    spec = importlib.util.spec_from_file_location("embedding_example", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_the_embedding_example_forgets_a_class(repository, capsys):
    """The guide's program: class 9 is learned, then gone, and the others remain."""
    result = load_example(repository).main(rounds=5, tune_rounds=3)
    assert result["u_before"] > 0.7
    assert result["u"] < 0.05
    assert result["r"] > result["r_before"] - 0.1
    assert "after:  class 9" in capsys.readouterr().out


def documents(repository):
    """Every Markdown file of the project."""
    found = [*repository.glob("*.md")]
    for folder in ("docs", "launch", "benchmarks"):
        found += (repository / folder).glob("*.md")
    return found


def test_links_between_documents_lead_somewhere(repository):
    """Relative links and pictures exist."""
    for page in documents(repository):
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


def test_functions_named_in_the_paper_map_exist(repository):
    """Every function of the map can be imported; every test it names is there."""
    text = (repository / "docs" / "paper_map.md").read_text()
    names = re.findall(r"`fuprune\.([a-z_.]+)\.([A-Za-z_]+)`", text)
    assert len(names) > 15
    for home, name in names:
        module = importlib.import_module(f"fuprune.{home}")
        assert hasattr(module, name), f"fuprune.{home}.{name}"
    tests = re.findall(r"`tests/([a-z_/]+\.py)::([a-z_]+)`", text)
    assert len(tests) > 10
    for path, name in tests:
        assert f"def {name}(" in (repository / "tests" / path).read_text(), name


@pytest.mark.parametrize("name", ["README.md", "CHANGELOG.md", "docs/guide.md"])
def test_the_pages_a_newcomer_reads_are_there(repository, name):
    """Not empty, and with no machine's private path in them."""
    text = (repository / name).read_text()
    assert len(text) > 300
    assert "/work/" not in text and "/root/" not in text and "/tmp/" not in text
