"""What the documents tell people to run does run, and what they link to is there."""

import doctest
import importlib
import json
import re
import shlex
import subprocess
import sys

import jax
import pytest

from tests.loading import load_module


def load_example(repository):
    """The embedding example as a module."""
    return load_module(repository / "docs" / "embedding_example.py")


@pytest.mark.slow
def test_the_embedding_example_forgets_a_class(repository, capsys):
    """The guide's program: class 9 is learned, then gone, and the others remain.

    With XLA's optimisations, as a user runs it: rounding decides how much of the class
    so short a training leaves, and other tests may have switched them off.
    """
    name = "jax_disable_most_optimizations"
    before = jax.config.read(name)
    jax.config.update(name, False)
    try:
        result = load_example(repository).main()
    finally:
        jax.config.update(name, before)
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


def commands(repository):
    """Every command of a shell block in a document, as words."""
    for page in documents(repository):
        for block in re.findall(r"```(?:sh|bash)\n(.*?)```", page.read_text(), re.S):
            for line in block.replace("\\\n", " ").splitlines():
                yield page.name, shlex.split(line, comments=True)


def test_commands_in_documents_are_accepted(repository):
    """Configs and keys, targets of make, scripts: what a reader would type is there."""
    from fuprune import main

    targets = re.findall(r"(?m)^(\w[\w-]*):", (repository / "Makefile").read_text())
    counted = 0
    for page, words in commands(repository):
        program, rest = (words or [""])[0], words[1:]
        if "fuprune.main" in words or (program, *rest[:1]) == ("fuprune", "run"):
            start = rest.index("fuprune.main") + 1 if "-m" in rest else 1
            main.parse(["fuprune", *rest[start:]])
        elif (program, *rest[:1]) == ("fuprune", "forget"):
            from fuprune.run import forget

            assert forget.parse(rest[1:]).classes
        elif program == "make":
            assert set(rest) <= set(targets), (page, words)
        elif program == "python" and rest[0].endswith(".py"):
            assert (repository / rest[0]).exists(), (page, words)
        else:
            continue
        counted += 1
    assert counted > 10
    recipes = (repository / "Makefile").read_text().replace("\\\n", " ")
    recipes = recipes.replace("$(PUBLISHED)", "results/cifar10_resnet20")
    made = [one for one in recipes.splitlines() if "-m fuprune.main" in one]
    for line in made:
        main.parse(["fuprune", *shlex.split(line.split("fuprune.main")[1])])
    assert len(made) == 2


def test_pages_hold_the_published_numbers(repository, monkeypatch):
    """The README's table, which a script writes from results/; and the explorer."""
    from fuprune.report import subject

    monkeypatch.chdir(repository)
    picture = load_module(repository / "docs" / "draw_main_figure.py")
    readme = (repository / "README.md").read_text()
    assert picture.filled(readme, subject.read_subject(picture.RUN)) == readme
    explorer = load_module(repository / "docs" / "make_explorer.py")
    page = explorer.PAGE.read_text()
    (numbers,) = re.findall("^const data = (.*);$", page, re.MULTILINE)
    assert explorer.filled(page, numbers) == page
    data = json.loads(numbers)
    assert data["rates"] == list(explorer.RATES)
    found = {len(choice["accuracy"]) for choice in data["choices"].values()}
    assert found == {len(data["rates"])}


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


def test_the_table_of_methods_is_made_of_their_declarations(repository):
    fill = load_module(repository / "docs" / "fill_methods.py")
    page = fill.PAGE.read_text()
    assert fill.filled(page) == page, "run docs/fill_methods.py"


def modules_with_examples(repository):
    """The modules of the package whose docstrings hold examples."""
    paths = sorted((repository / "fuprune").rglob("*.py"))
    found = [path for path in paths if ">>> " in path.read_text()]
    names = [
        ".".join(path.relative_to(repository).with_suffix("").parts) for path in found
    ]
    return [name.removesuffix(".__init__") for name in names]


def test_examples_in_docstrings_run(repository):
    names = modules_with_examples(repository)
    assert names
    for name in names:
        module = importlib.import_module(name)
        assert doctest.testmod(module).failed == 0, name


def test_every_page_is_on_the_site(repository):
    """The table of contents names each page of docs/ once."""
    folder = repository / "docs"
    trees = re.findall(
        r"```{toctree}\n(.*?)```", (folder / "index.md").read_text(), re.S
    )
    listed = [name for tree in trees for name in re.findall(r"(?m)^\w+$", tree)]
    pages = {page.stem for kind in ("md", "ipynb") for page in folder.glob(f"*.{kind}")}
    assert sorted(listed) == sorted(pages - {"index"})


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_has_every_name(repository, tmp_path):
    import fuprune
    from fuprune.config import KEYS

    command = [sys.executable, "-m", "sphinx", "-W", "-q", "-b", "html"]
    subprocess.run([*command, repository / "docs", tmp_path], check=True)
    reference = (tmp_path / "reference.html").read_text()
    for name in fuprune.__all__:
        if callable(getattr(fuprune, name)):
            assert f'id="fuprune.{name}"' in reference, name
    configuration = (tmp_path / "configuration.html").read_text()
    for name in KEYS:
        assert f">{name}</span>" in configuration, name


@pytest.mark.slow
def test_the_tutorial_runs(repository, tmp_path):
    """Every cell of the notebook, and its class is learned before it is forgotten."""
    import nbclient
    import nbformat

    notebook = nbformat.read(repository / "docs" / "tutorial.ipynb", as_version=4)
    nbclient.NotebookClient(
        notebook, timeout=1200, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    said = "".join(
        output.get("text", "")
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    )
    accuracies = dict(re.findall(r"(?m)^(\w+) +class 9 +([\d.]+)%", said))
    assert float(accuracies["raw"]) > 70 and float(accuracies["class_pruning"]) < 20
    assert float(accuracies["retrained"]) == 0


def own_data_section(repository):
    """The programs and the commands of the guide's section on own data."""
    text = (repository / "docs" / "guide.md").read_text()
    section = text.split("## Your own data")[1].split("\n## ")[0]
    programs = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    blocks = re.findall(r"```bash\n(.*?)```", section, re.DOTALL)
    commands = [shlex.split(block.replace("\\\n", " ")) for block in blocks]
    assert len(programs) == 1 and len(commands) == 2
    return programs, commands


def test_the_guides_own_data_is_made_read_and_dealt(repository, tmp_path, monkeypatch):
    from fuprune import main
    from fuprune.run import machine
    from fuprune.run.data import load_data

    monkeypatch.chdir(tmp_path)
    programs, commands = own_data_section(repository)
    for program in programs:
        exec(program, {})
    runtime = machine.Runtime(backend="map")
    for command in commands:
        assert command[:3] == ["python", "-m", "fuprune.main"]
        config = main.parse(["fuprune", *command[3:]]).config
        federation = load_data(config, runtime)
        assert federation.class_names == ("cat", "dog", "hamster")
        natural = config.partition.kind == "natural"
        assert federation.data.num_clients == (
            20 if natural else config.partition.clients
        )
        assert len(federation.train.labels) + len(federation.validation.labels) == 480
