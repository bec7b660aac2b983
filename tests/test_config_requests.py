"""Which request, methods and phases a config names."""

import re

import pytest

from fuprune import config as config_lib
from fuprune.config import ConfigError
from fuprune.config.keys import KEYS, PHASES
from fuprune.unlearning.methods import METHODS
from tests.settings import changed


@pytest.mark.parametrize("written", [9, "9", (9,), [9], ("9",), " 9 "])
def test_one_class_can_be_written_in_every_way(written):
    assert config_lib.classes(changed(unlearn__classes=written)) == (9,)


@pytest.mark.parametrize("written", ["9,0", "9, 0", (9, 0), ("9", "0")])
def test_classes_keep_their_order(written):
    assert config_lib.classes(changed(unlearn__classes=written)) == (9, 0)


def test_classes_of_an_unknown_set_are_checked_once_it_is_loaded():
    config = changed(data__name="emnist/letters", unlearn__classes=30)
    config_lib.validate(config)
    with pytest.raises(ConfigError, match="allowed: 0 to 25, the classes of emnist"):
        config_lib.check_classes(config, 26)
    config_lib.check_classes(config, 37)


def test_phases_run_in_their_order_whatever_the_order_given():
    config = changed(phases="report,pretrain")
    assert config_lib.phases(config) == ("pretrain", "report")
    assert config_lib.phases(changed(phases="all")) == PHASES
    assert config_lib.phases(changed(phases=("audit",))) == ("audit",)


def test_methods_come_from_a_string_a_tuple_all_or_the_single_key():
    assert config_lib.methods(changed(unlearn__methods="fisher,retrain")) == (
        "fisher",
        "retrain",
    )
    assert config_lib.methods(changed(unlearn__methods=("fisher", "fisher"))) == (
        "fisher",
    )
    assert config_lib.methods(changed(unlearn__method="ascent")) == ("ascent",)
    with_history = changed(
        unlearn__methods="all", train__history_bytes=1, train__history_interval=2
    )
    assert config_lib.methods(with_history) == tuple(METHODS)
    without = config_lib.methods(changed(unlearn__methods="all"))
    assert set(METHODS) - set(without) == {
        "amnesiac",
        "fed_eraser",
        "fed_eraser_uncalibrated",
    }


def test_all_for_clients_is_all_that_serve_them():
    config = changed(unlearn__methods="all", unlearn__clients="3,17")
    chosen = config_lib.methods(config)
    assert {"retrain", "sisa", "fisher"} <= set(chosen)
    assert all("clients" in METHODS[name].serves for name in chosen)
    assert config_lib.request_kind(config) == "clients"
    assert config_lib.classes(config) == ()
    config_lib.validate(config)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"unlearn__clients": "3"}, ("retrain", "sisa")),
        ({"unlearn__examples": "a.txt"}, ("retrain", "sisa")),
        (
            {"unlearn__clients": "3", "train__history_interval": 2},
            ("retrain", "fed_eraser"),
        ),
        ({"unlearn__clients": "3", "sisa__shards": 100}, ("retrain", "sisa")),
        ({"unlearn__clients": "3", "sisa__shards": 101}, ("retrain",)),
    ],
)
def test_methods_that_nobody_chose_give_way_to_those_that_serve(values, expected):
    config = changed(**values)
    assert config_lib.methods(config) == expected
    config_lib.validate(config)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"unlearn__clients": "3", "unlearn__methods": "retrain,class_pruning"},
            "names class_pruning, which serves classes, while unlearn.clients is given",
        ),
        (
            {"unlearn__clients": "100", "unlearn__methods": "retrain"},
            "unlearn.clients names client 100; allowed: 0 to 99",
        ),
        ({"unlearn__clients": "3,3"}, "unlearn.clients is '3,3'; allowed: client num"),
        (
            {"unlearn__clients": "3", "unlearn__examples": "a.txt"},
            "unlearn.clients and unlearn.examples are both given; allowed: one kind",
        ),
        (
            {"unlearn__clients": "3", "unlearn__classes": 8},
            "unlearn.classes and unlearn.clients are both given",
        ),
        ({"unlearn__classes": ""}, "are all empty; allowed: one of them"),
        (
            {"unlearn__methods": "fed_eraser"},
            "names fed_eraser while train.history_interval is 0; allowed: the rounds",
        ),
        (
            {
                "unlearn__methods": "retrain",
                "unlearn__clients": 1,
                "privacy__curve": "1",
            },
            "privacy.curve is '1' while unlearn.clients is given",
        ),
    ],
)
def test_requests_that_cannot_be_are_refused(values, message):
    with pytest.raises(config_lib.ConfigError, match=re.escape(message)) as caught:
        config_lib.validate(changed(**values))
    assert "\n" not in str(caught.value)


def test_clients_of_a_natural_partition_are_checked_once_they_are_counted():
    config = changed(partition__kind="natural", train__cohort=25)
    config_lib.validate(config)
    with pytest.raises(ConfigError, match="train.cohort is 25; allowed: at most part"):
        config_lib.check_clients(config, 24)
    config_lib.check_clients(config, 25)


def test_every_key_of_a_methods_sections_is_an_option_of_the_method():
    """A key that the function does not take would be dropped in silence."""
    fed_otherwise = {
        "prune.capture_clients",  # chooses the participants
        "fed_eraser.rate",  # is in the replay's algorithm
    }
    for name, method in METHODS.items():
        for section in method.sections:
            keys = {key for key in KEYS if key.startswith(f"{section}.")}
            assert keys, (name, section)
            if section == "privacy":  # becomes clip, protect and a statement
                assert {"clip", "protect", "privacy"} <= method.options, name
                continue
            fixed = getattr(method, "fixes", ())
            options = {f"{section}.{x}" for x in {*method.options, *fixed}}
            assert keys - fed_otherwise <= options, (name, keys - options)
            if isinstance(method.sections, dict):
                made = method.sections[section]()
                own = {
                    f"{section}.{n}": x for n, x in vars(made).items() if n[0] != "_"
                }
                assert own == {key: KEYS[key].default for key in keys}
