"""The rules of the house, read off the source: who imports whom, what is absent."""

import ast
import pathlib
import subprocess
import sys

import pytest

PACKAGE = pathlib.Path(__file__).parents[1] / "fuprune"
# Each room may import itself and those to its left.
ROOMS = (
    "kernels",
    "data",
    "models",
    "surgery",
    "federated",
    "unlearning",
    "audit",
    "report",
)
# `models` sits beside `data`, not after it.
FORBIDDEN = {("models", "data"), ("data", "kernels"), ("surgery", "data")}
# Files, clocks and consoles: for the run.
GUARDED = {"run", "report", "main"}
# What a room may use although it is no room.
NEUTRAL = {"classes", "errors", "files", "options", "results"}
# Beside the rooms; these know nothing of the run.
FOUNDATIONS = {"config", "errors"} | NEUTRAL


def modules():
    return sorted(PACKAGE.rglob("*.py"))


def place(path: pathlib.Path) -> str:
    """The room of a file, or its own name if it is in none."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[0]


def imports(path: pathlib.Path) -> set[tuple[str, ...]]:
    """Dotted names imported from fuprune, deferred imports included."""
    package = ("fuprune", *path.relative_to(PACKAGE).parts[:-1])
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {tuple(alias.name.split(".")) for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            found |= {(*base, alias.name) for alias in node.names}
    return {name for name in found if name[0] == "fuprune" and len(name) > 1}


@pytest.mark.parametrize("room", ROOMS)
def test_imports_point_left(room):
    for path in modules():
        if place(path) != room:
            continue
        for name in imports(path):
            target = name[1]
            if target in ROOMS:
                allowed = ROOMS.index(target) <= ROOMS.index(room)
                assert allowed and (room, target) not in FORBIDDEN, (path, name)
            else:
                assert target in NEUTRAL, (path, name)


def test_only_the_run_touches_files_clocks_and_the_console():
    for path in modules():
        here = place(path)
        if here not in FOUNDATIONS and here not in ROOMS:
            continue
        for name in imports(path):
            assert name[1] == here or name[1] not in GUARDED, (path, name)


WITHOUT_EXTRAS = """
import importlib, pkgutil, sys

EXTRAS = '''
    flwr grpc httpx cryptography dp_accounting datasets tensorflow_datasets tensorboardX
'''.split()

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in EXTRAS:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
import fuprune

for module in pkgutil.walk_packages(fuprune.__path__, "fuprune."):
    if not module.name.startswith("fuprune.flower"):
        importlib.import_module(module.name)
for name in fuprune.__all__:
    getattr(fuprune, name)
"""


@pytest.mark.slow
def test_everything_but_flower_is_imported_where_extras_are_not_installed():
    subprocess.run([sys.executable, "-c", WITHOUT_EXTRAS], check=True)


def test_nothing_but_the_command_line_and_a_server_start_an_experiment():
    for path in modules():
        if place(path) == "__init__":
            continue
        for name in imports(path):
            assert name[1] != "main", (path, name)
            starts = name[1:3] == ("run", "experiment")
            assert not starts or place(path) in ("main", "flower"), name


def test_library_functions_take_no_config():
    for path in modules():
        # A report reads a run's files, its config.json among them.
        if place(path) not in ROOMS or place(path) == "report":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                arguments = (
                    node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                )
                names = {argument.arg for argument in arguments}
                assert "config" not in names, (path, node.name)


def test_public_names_are_those_of_the_stub_and_load():
    import fuprune

    stub = ast.parse((PACKAGE / "__init__.pyi").read_text())
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    names = {alias.asname for node in imports for alias in node.names}
    assert names == set(fuprune.__all__) == set(dir(fuprune))
    assert {"load_dataset", "audit_models", "compact", "METHODS", "show"} <= names
    for name in fuprune.__all__:
        assert getattr(fuprune, name) is not None
    assert not hasattr(fuprune, "nothing_like_it")


def test_import_of_the_package_does_not_wait_for_jax():
    source = "import sys, fuprune; dir(fuprune); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", source], check=True, cwd=PACKAGE.parent)


def test_few_modules_lie_loose_and_none_is_too_long():
    loose = {path.stem for path in PACKAGE.glob("*.py")}
    assert len(loose) <= 7, loose
    assert len((PACKAGE / "main.py").read_text().splitlines()) <= 175
