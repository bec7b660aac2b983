"""Configs that tests start from."""

from fuprune.run.config_loading import load_config


def quickstart():
    """The setting of a run without --config, as its file makes it."""
    return load_config("quickstart")[1]
