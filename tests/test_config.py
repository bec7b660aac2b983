"""Keys: what they may be, what they mean together, and how they are stored."""

import importlib.util
import json
import math
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune import config as config_lib
from fuprune import options
from fuprune.config import KEYS, ConfigError
from fuprune.errors import FupruneError
from fuprune.unlearning.methods import METHODS
from tests.settings import changed

DEFAULTS = config_lib.flatten(config_lib.default())


def test_a_key_is_described_and_its_default_is_allowed_also_as_text():
    for name, field in KEYS.items():
        use = field.description
        assert use and use.isprintable() and not use.endswith(".") and len(use) < 130
        config = config_lib.default()
        section, leaf = config_lib.place(config, name)
        config_lib.update(config, {name: DEFAULTS[name]})
        text = options.read_text(type(section), leaf, str(DEFAULTS[name]))
        assert text == DEFAULTS[name] == getattr(section, leaf)


def bad_values(field):
    """What a key may not be, from the type and the bounds that it declares."""
    bad = [None, object, {}, "\x00", "nonsense\n"]
    if field.annotation in (int, float):
        bad += [True, math.nan, math.inf, -math.inf, "1", 10**400]
        bad += [1.5, 1.0] if field.annotation is int else []
    if field.annotation is bool:
        bad += [0, 1, "True"]
    if options.choices(field):
        bad += ["", "nonsense", 3, True]
    return bad


def test_what_a_key_may_not_be_is_refused_in_one_sentence_that_names_it():
    config = config_lib.default()
    for name, value in [(n, x) for n in KEYS for x in bad_values(KEYS[n])]:
        with pytest.raises(ConfigError) as caught:
            config_lib.update(config, {name: value})
        sentence = str(caught.value)
        assert sentence.startswith(f"{name} ") and "; allowed: " in sentence, value
        assert sentence.isprintable() and sentence.endswith("."), value
    assert config_lib.flatten(config) == DEFAULTS, "a refused value has no effect"


REFUSED = {
    "model.name is 'resnet18'; allowed: resnet8, resnet20, ": {
        "model.name": "resnet18"
    },
    "data.name is '../x'": {"data.name": "../x"},
    "partition.bias is 1.5; allowed: less than or equal to 1.": {"partition.bias": 1.5},
    "train.rounds is 1.5; allowed: a valid integer.": {"train.rounds": 1.5},
    "train.momentum is 1.0; allowed: less than 1.": {"train.momentum": 1.0},
    "allowed: 0 to 1, or -1.": {"fine_tune.target_accuracy": -0.5},
    "'retrian' (did you mean retrain?); allowed": {"unlearn.methods": "retrian"},
    "phases names 'adit' (did you mean audit?)": {"phases": "pretrain,adit"},
    "audit.tests names '7'; allowed: all, or some of accu": {"audit.tests": 7},
    "unlearn.classes is (1, 1); allowed: class num": {"unlearn.classes": (1, 1)},
    # Values that are fine by themselves.
    "train.cohort is 101; allowed: at most partition.clients, which is 100.": {
        "train.cohort": 101
    },
    "1 or more with fed_avg": {"train.algorithm": "fed_avg", "train.batch_size": 0},
    "train.local_steps is 5; allowed: 0 with fed_sgd,": {"train.local_steps": 5},
    "at most train.cohort, which is 25.": {"train.min_participants": 26},
    "unlearn.participants is 101; allowed: at": {"unlearn.participants": 101},
    "prune.weighting is 'clients'; allowed: examples with privacy": {
        "prune.weighting": "clients",
        "privacy.epsilon": 1.0,
    },
    "prune.rate is 'auto'; allowed: a number with privacy.epsilon": {
        "prune.rate": "auto",
        "privacy.epsilon": 1.0,
    },
    "names class 10; allowed: 0 to 9, the classes of": {"unlearn.classes": 10},
    "names class -1; allowed: 0 to 9": {"unlearn.classes": "-1"},
    "names amnesiac while train.history_interval is 2; allowed: 1 (": {
        "unlearn.methods": "amnesiac",
        "train.history_interval": 2,
    },
    "audit.backdoor is 0.5; allowed: 0 for classes": {"audit.backdoor": 0.5},
    "names class_pruning, which serves other requests, while unlearn.clients": {
        "unlearn.clients": "3",
        "unlearn.method": "class_pruning",
    },
    "unlearn names clients and examples to forget; allowed: one of": {
        "unlearn.clients": "3",
        "unlearn.examples": "a.txt",
    },
    "unlearn names nothing to forget; allowed: one of": {"unlearn.classes": ""},
}


@pytest.mark.parametrize("sentence", REFUSED)
def test_what_makes_no_sense_is_named_with_what_is_allowed(sentence):
    config = config_lib.default()
    with pytest.raises(FupruneError, match=re.escape(sentence)) as caught:
        config_lib.update(config, REFUSED[sentence])
        config_lib.validate(config)
    assert str(caught.value).isprintable()


def test_what_an_extra_brings_is_asked_for_before_any_training(monkeypatch):
    key, package, find = "privacy.epsilon", "dp_accounting", importlib.util.find_spec
    absent = lambda name: None if name == package else find(name)  # noqa: E731
    monkeypatch.setattr(importlib.util, "find_spec", absent)
    config = config_lib.default()
    config_lib.update(config, {key: 1.0})
    with pytest.raises(FupruneError) as caught:
        config_lib.validate(config)
    install = f"{package}; install it with pip install 'fuprune[privacy]'."
    assert str(caught.value) == f"{key} needs the package {install}"


def test_names_known_here_are_those_of_the_library():
    from fuprune.federated import aggregate
    from fuprune.models import zoo
    from fuprune.surgery import ORDERS, SCOPES
    from fuprune.unlearning.scores import SCORES

    assert config_lib.MODELS == zoo.MODELS
    assert options.choices(KEYS["train.aggregation"]) == tuple(aggregate.RULES)
    for key, names in (("score", SCORES), ("scope", SCOPES), ("order", ORDERS)):
        assert options.choices(KEYS[f"prune.{key}"]) == tuple(names)


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("trian.rounds", "did you mean train.rounds?"),
        ("train", "train is a group of keys; allowed: train.algorithm, "),
        ("xyz", "allowed: seed, phases, data, "),
        ("model.\x1b[31mé", "unknown key 'model.\\x1b[31m\\xe9'"),
    ],
)
def test_misspelt_key_gets_a_suggestion(key, suggestion):
    with pytest.raises(ConfigError) as caught:
        config_lib.update(config_lib.default(), {key: 1})
    assert suggestion in str(caught.value) and str(caught.value).isprintable()


def test_a_misspelt_attribute_is_refused_where_it_is_written():
    with pytest.raises(ConfigError, match=r"did you mean train\.learning_rate\?"):
        config_lib.default().train.learnin_rate = 0.1
    with pytest.raises(ConfigError, match="unknown key 'trian'; did you mean train?"):
        config_lib.default().trian = 1
    with pytest.raises(ConfigError, match="train is 1; allowed: an instance of Train."):
        config_lib.default().train = 1
    with pytest.raises(ConfigError, match="the configuration is a dict"):
        config_lib.validate({"train": {}})


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.integers(-3, 3),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from(["all", "", "auto", "9", "0,9", "resnet20", "sgd", "10" * 200]),
    st.tuples(st.integers(-1, 12), st.integers(-1, 12)),
    st.lists(st.text(max_size=3), max_size=3),
)


@settings(max_examples=500)
@given(st.dictionaries(st.sampled_from(sorted(KEYS)), VALUES, min_size=1, max_size=4))
def test_any_values_are_accepted_or_refused_in_one_printable_line(values):
    config = config_lib.default()
    try:
        config_lib.update(config, values)
        config_lib.validate(config)
    except FupruneError as error:
        assert str(error).isprintable() and len(str(error)) < 2000
        return
    # What is accepted can be stored, read back and run.
    stored = json.loads(json.dumps(config_lib.to_json(config)))
    assert config_lib.from_json(stored) == config
    assert config_lib.difference(stored, config_lib.to_json(config)) == []
    assert config_lib.phases(config) and config_lib.methods(config)


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"train": {"rounds": "3"}}, "train.rounds is '3'; allowed: a valid integer."),
        ({"train": {"learning_rate": 10**400}}, "allowed: a valid number."),
        ({"train": 3}, "train is a group of keys"),
    ],
)
def test_stored_config_that_does_not_fit_is_refused(stored, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        config_lib.from_json(stored)


def test_difference_names_what_would_change_a_result_and_nothing_else():
    old = config_lib.to_json(config_lib.default())
    new = changed(
        train__rounds=7,
        runtime__dtype="bfloat16",
        runtime__backend="loop",
        runtime__progress="plain",
        phases="audit",
        train__checkpoint_every=3,
        unlearn__classes="9",
    )
    changes = config_lib.difference(old, config_lib.to_json(new))
    assert changes == ["runtime.dtype", "train.rounds"]


def test_a_config_of_another_version_is_read():
    """A key that it lacks counts as its default; one too many is ignored."""
    config = changed(train__label_smoothing=0.1, data__validation=0.25)
    new, old = (config_lib.to_json(config) for _ in range(2))
    del old["train"]["label_smoothing"], old["data"], old["seed"]
    old["train"]["forgotten_key"] = old["more"] = {"a": 1}
    restored = config_lib.from_json(old)
    assert restored.train.label_smoothing == 0.0
    assert restored == config_lib.default()
    assert config_lib.difference(old, new) == [
        "data.validation",
        "train.label_smoothing",
    ]


@pytest.mark.parametrize("written", [9, "9", (9,), [9], ("9",), " 9 "])
def test_one_class_can_be_written_in_every_way(written):
    config = changed(unlearn__classes=written)
    assert config_lib.classes(config) == (9,) and config.unlearn.classes == 9


def test_counts_that_only_the_data_tell_are_checked_once_they_are_loaded():
    config = changed(data__name="emnist/letters", unlearn__classes=30)
    config_lib.validate(config)
    with pytest.raises(FupruneError, match="allowed: 0 to 25, the classes of emnist"):
        config_lib.check_counts(config, None, 26)
    config_lib.check_counts(config, 100, 37)
    config = changed(partition__kind="natural", train__cohort=25)
    config_lib.validate(config)
    with pytest.raises(ConfigError, match="train.cohort is 25; allowed: at most part"):
        config_lib.check_counts(config, 24, None)


CONTROLLED = "class_pruning,retrain,mask_logit,fine_tune_only"


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"unlearn__methods": ("fisher", "fisher")}, "fisher"),
        ({"unlearn__method": "ascent"}, "ascent"),
        ({"unlearn__methods": CONTROLLED}, CONTROLLED),
        # Those that serve classes give way to a request of clients or examples.
        ({"unlearn__clients": "3"}, "retrain,sisa"),
        ({"unlearn__clients": "3", "sisa__shards": 101}, "retrain"),
        (
            {"unlearn__clients": "3", "unlearn__methods": "class_pruning,fisher"},
            "fisher",
        ),
        (
            {"unlearn__clients": "3", "unlearn__methods": CONTROLLED},
            "retrain,fine_tune_only,sisa",
        ),
        ({"unlearn__clients": "3", "train__history_interval": 2}, "retrain,fed_eraser"),
    ],
)
def test_methods_that_run_are_those_named_that_serve(values, expected):
    config = changed(**values)
    assert ",".join(config_lib.methods(config)) == expected
    config_lib.validate(config)


def test_all_methods_are_those_that_serve_and_have_their_record():
    def all_of(**values):
        return config_lib.methods(changed(unlearn__methods="all", **values))

    serve = {n: m for n, m in METHODS.items() if "classes" in m.serves}
    assert all_of(train__history_interval=1) == tuple(serve)
    some = set(serve) - set(all_of(train__history_interval=2))
    assert some == {"amnesiac"}
    records = {name for name, method in METHODS.items() if method.needs}
    assert set(all_of()) == set(serve) - records
    of_clients = all_of(unlearn__clients="3,17")
    assert {"retrain", "sisa", "fisher"} <= set(of_clients)
    assert all("clients" in METHODS[name].serves for name in of_clients)
