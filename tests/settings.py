"""Configs that tests start from."""

from fuprune import config as config_lib


def quickstart():
    """The setting of a run without --config, as its file makes it."""
    return config_lib.load_config("quickstart")[1]


def changed(**values):
    """The default with dotted keys, dots written as double underscores, replaced."""
    config = config_lib.default()
    leaves = {name.replace("__", "."): value for name, value in values.items()}
    config_lib.update(config, leaves)
    return config
