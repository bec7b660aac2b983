"""Where a run's config comes from: a file or a shipped name, then flags that override.

A config file is Python with `get_config()`. Those in the repository's `configs/` are
shipped with the package and are known by their bare name, such as cifar10_resnet.
"""

import importlib.util
import logging
import re
from collections.abc import Sequence
from pathlib import Path

from absl import flags
from ml_collections import config_dict, config_flags

from fuprune import config as config_lib
from fuprune.config import Config, ConfigError
from fuprune.config.keys import KEYS
from fuprune.errors import FupruneError, UsageError

_PACKAGE = Path(__file__).parents[1]


def shipped_configs() -> dict[str, Path]:
    """Returns the config files that come with the package, by bare name."""
    inside = _PACKAGE / "_configs"  # in a wheel; a checkout has them at its top
    folder = inside if inside.is_dir() else _PACKAGE.parent / "configs"
    return {path.stem: path for path in sorted(folder.glob("[a-z]*.py"))}


def load_config(text: str) -> tuple[str, Config]:
    """Runs the `get_config` of a config file.

    Args:
      text: path or shipped name, and after a colon what `get_config` is given:
        configs/cifar10_resnet.py:56 or cifar10_resnet:56.

    Returns:
      A name for the run, and the config as the file made it.

    Raises:
      UsageError: if there is no such file, or it fails.
    """
    name, colon, argument = text.partition(":")
    shipped = shipped_configs()
    path = shipped[name] if name in shipped else Path(name)
    if not path.is_file():
        raise UsageError(
            f"there is no config file {name!r}; allowed: {', '.join(shipped)}, or the "
            "path of a Python file with get_config(), or no --config for the "
            "quickstart."
        )
    spec = importlib.util.spec_from_file_location("fuprune_run_config", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"the config file {name!r} is not a Python file (.py).")
    module = importlib.util.module_from_spec(spec)
    arguments = [argument] if colon else []
    try:
        spec.loader.exec_module(module)
        return "_".join([path.stem, *arguments]), module.get_config(*arguments)
    except FupruneError:
        raise
    except Exception as error:
        raise UsageError(
            f"the config file {name} failed: {type(error).__name__}: {error}"
        ) from error


def split_overrides(arguments: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Parts other flags from --config.key=value, by key; the last of a key counts.

    Raises:
      FupruneError: for a key that does not exist, or lacks its value.
    """
    rest: list[str] = []
    overrides: dict[str, str] = {}
    remaining = iter(arguments)
    for argument in remaining:
        match = re.fullmatch(r"--?(no)?config\.([^=]*)(=.*)?", argument, re.DOTALL)
        if match is None:
            rest.append(argument)
            continue
        negated, key, value = match.groups()
        if key not in KEYS:
            raise config_lib.unknown_key(key)
        is_switch = isinstance(KEYS[key].default, bool)
        if negated and (value is not None or not is_switch):
            raise UsageError(
                f"{argument} makes no sense; write --config.{key}=<value>."
            )
        if value is None and not is_switch:
            value = next(remaining, None)
            if value is None:
                raise UsageError(f"--config.{key} lacks a value.")
            value = f"={value}"
        overrides[key] = f"--{negated or ''}config.{key}{value or ''}"
    return rest, overrides


def apply_overrides(config: Config, overrides: dict[str, str], name: str = "") -> None:
    """Sets what `split_overrides` found in the config, in place.

    `name` is that of the run, as `load_config` returned it.

    Raises:
      FupruneError: for a value that its key cannot take.
    """
    if not isinstance(config, config_dict.ConfigDict) or not overrides:
        return
    arguments = ["fuprune", *overrides.values()]
    # Apart from the program's own flags, so that a second call finds a clean slate.
    values = flags.FlagValues()
    try:
        config_flags.DEFINE_config_dict(
            "config", config, flag_values=values, sys_argv=arguments, lock_config=False
        )
        values(arguments)
    except flags.IllegalFlagValueError as error:
        match = re.match(r"flag --config\.([^=]+)=(.*?): ", str(error), re.DOTALL)
        if match is None:
            raise UsageError(str(error)) from error
        raise config_lib.wrong_type(*match.groups()) from error
    except (flags.Error, LookupError, AttributeError, ValueError) as error:
        raise ConfigError(f"{' '.join(overrides.values())}: {error}") from error
    except (RecursionError, MemoryError) as error:
        raise ConfigError("a value of --config is nested too deeply.") from error
    if name == "quickstart":
        _lift_quickstart_limit(config, overrides)
    _take_methods_that_serve(config, overrides)


def _take_methods_that_serve(config: Config, overrides: dict[str, str]) -> None:
    """Replaces methods for classes that a config file lists and the user did not.

    It is for a request of clients or examples on the command line; a file that asks
    for such a request itself should list methods that serve it.
    """
    asked = {"unlearn.clients", "unlearn.examples"} & set(overrides)
    if not asked or {"unlearn.methods", "unlearn.method"} & set(overrides):
        return
    if config.unlearn.method or config_lib.request_kind(config) == "classes":
        return
    before = config_lib.read(config, "unlearn.methods")
    after = config_lib.served(config, before)
    unfit = [name for name in before if name not in after]
    if unfit:
        config.unlearn.methods = ",".join(after)
        logging.getLogger(__name__).info(
            "unlearn.methods is %s: for a request of this kind there is no %s.",
            config.unlearn.methods,
            " or ".join(unfit),
        )


def _lift_quickstart_limit(config: Config, overrides: dict[str, str]) -> None:
    """Takes all images of data that the user chose.

    The quickstart trains on 22 digits per class so that they are memorised. Its other
    settings may suit other data; that one would quietly drop most of them.
    """
    brought = "data.name" in overrides and config.data.name != "digits"
    if brought and "data.limit" not in overrides:
        config.data.limit = 0
