"""Configs that tests start from."""

from fuprune import config as config_lib
from fuprune.run.config_loading import load_config


def quickstart():
    """The setting of a run without --config, as its file makes it."""
    return load_config("quickstart")[1]


def changed(**values):
    """The default with dotted keys, dots written as double underscores, replaced."""
    leaves = config_lib.flatten(config_lib.default())
    config = config_lib.default()
    for name, value in values.items():
        key = name.replace("__", ".")
        assert key in leaves
        put(config, key, value)
    return config


def put(config, key, value):
    *sections, leaf = key.split(".")
    for section in sections:
        config = config[section]
    with config.ignore_type():
        config[leaf] = value
