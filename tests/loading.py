"""Python files outside the package, as modules."""

import importlib.util


def load_module(path):
    """Runs the file; the module is not found by another import."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
