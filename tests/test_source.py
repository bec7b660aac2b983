"""Nothing in the package can turn a file into code, by what its source calls."""

import ast
import pathlib

import fuprune

FORBIDDEN_MODULES = {
    "pickle",
    "cPickle",
    "_pickle",
    "dill",
    "cloudpickle",
    "joblib",
    "shelve",
    "marshal",
    "yaml",
    "torch",
    "code",
    "codeop",
}
FORBIDDEN_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "os.system",
    "os.popen",
    "runpy.run_path",
    "pickle.load",
    "yaml.load",
    "np.fromregex",
}
# A file handed to these becomes code, so each has one known place and reason.
KNOWN_PLACES = {
    "import_module": {
        "models/brought.py",  # a factory that the caller or the run's config names
        "unlearning/methods.py",  # this package's own functions, by its own table
    },
    "exec_module": {"config.py"},  # a config file named on the command line
    "CDLL": {"kernels/build.py"},  # the kernels' own library
    "subprocess": {
        "kernels/build.py",  # the compiler
        "flower/launch.py",  # Flower's server and clients on this machine
        "run/provenance.py",  # git, for the commit
    },
}


def sources():
    root = pathlib.Path(fuprune.__file__).parent
    for path in sorted(root.rglob("*.py")):
        yield path.relative_to(root).as_posix(), ast.parse(path.read_text("utf-8"))


def dotted(node):
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return "?"


def constant(call, name):
    for keyword in call.keywords:
        if keyword.arg == name and isinstance(keyword.value, ast.Constant):
            return keyword.value.value
    return None


def complaints(name, tree):
    """What in a module could turn a file into code."""
    for node in ast.walk(tree):
        modules = []
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules = [node.module or ""]
        for module in modules:
            root = module.split(".")[0]
            if root in FORBIDDEN_MODULES and name not in KNOWN_PLACES.get(root, ()):
                yield f"{name}:{node.lineno} imports {module}"
            if module == "subprocess" and name not in KNOWN_PLACES["subprocess"]:
                yield f"{name}:{node.lineno} imports subprocess"
        if not isinstance(node, ast.Call):
            continue
        called = dotted(node.func)
        last = called.split(".")[-1]
        if called in FORBIDDEN_CALLS:
            yield f"{name}:{node.lineno} calls {called}"
        if called in ("np.load", "numpy.load", "jnp.load"):
            if constant(node, "allow_pickle") is not False:
                yield f"{name}:{node.lineno} loads arrays without allow_pickle=False"
        elif constant(node, "allow_pickle") or constant(node, "shell"):
            yield f"{name}:{node.lineno} passes allow_pickle or shell"
        if last in ("extractall", "unpack_archive") or called.endswith("tar.extract"):
            yield f"{name}:{node.lineno} unpacks an archive by the names in it"
        if ast.unparse(node).endswith("CDLL(None)"):
            continue  # the process itself, not a file
        if last in KNOWN_PLACES and name not in KNOWN_PLACES[last]:
            yield f"{name}:{node.lineno} calls {called}"


def test_nothing_in_the_package_can_turn_a_file_into_code():
    found = [line for name, tree in sources() for line in complaints(name, tree)]
    assert found == []
    assert len(list(sources())) > 30
