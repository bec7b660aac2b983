import itertools
import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fuprune import config as config_lib
from fuprune.config import ConfigError
from fuprune.config.keys import AUDIT_TESTS, KEYS, MODELS, SECTIONS
from tests.settings import changed, put, quickstart


def test_default_and_quickstart_are_valid():
    config_lib.validate(config_lib.default())
    config_lib.validate(quickstart())


def test_every_key_is_in_the_table_once_and_commented():
    names = [key.name for section in SECTIONS for key in section.keys]
    assert len(names) == len(set(names)) == len(KEYS)
    assert set(config_lib.flatten(config_lib.default())) == set(names)
    for key in KEYS.values():
        assert key.comment and not key.comment.endswith("."), key.name
        assert len(key.comment) < 120 and key.comment.isprintable(), key.name


def test_every_default_is_allowed_and_words_are_checked_against_their_choices():
    for key in KEYS.values():
        key.allowed.read(key.default)
        if key.allowed.choices:
            with pytest.raises(ValueError):
                key.allowed.read("nonsense")


def test_help_shows_each_key_below_its_section_with_default_and_comment():
    lines = config_lib.describe_keys().splitlines()
    for section in SECTIONS:
        start = lines.index(f"{section.name or 'run'}: {section.comment}")
        block = list(itertools.takewhile(bool, lines[start + 1 :]))
        text = " ".join(" ".join(block).split())
        for key in section.keys:
            assert f"{key.name} = {key.default!r} {key.comment}" in text
            for choice in key.allowed.choices:
                assert choice in text
    assert max(map(len, lines)) <= 88


def test_names_known_here_are_those_of_the_library():
    audit = pytest.importorskip("fuprune.audit.audit")
    from fuprune.federated import aggregate
    from fuprune.models import zoo
    from fuprune.unlearning import class_pruning

    assert MODELS == zoo.MODELS
    assert AUDIT_TESTS == audit.KINDS
    for name in aggregate.RULES:
        config_lib.validate(changed(train__aggregation=name))
    for name in class_pruning.SURGERIES:
        config_lib.validate(changed(prune__surgery=name))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"model__name": "resnet18"},
            "model.name is 'resnet18'; allowed: resnet8, resnet20, ",
        ),
        ({"model__norm": "layer"}, "model.norm is 'layer'; allowed: batch, group."),
        ({"data__name": "CIFAR 10"}, "data.name is 'CIFAR 10'; allowed: digits, "),
        ({"data__name": "../x"}, "data.name is '../x'"),
        ({"partition__bias": 1.5}, "partition.bias is 1.5; allowed: 0 to 1."),
        ({"partition__bias": math.nan}, "partition.bias is nan; allowed: 0 to 1."),
        ({"partition__alpha": 0.0}, "partition.alpha is 0.0; allowed: more than 0"),
        ({"partition__clients": 0}, "partition.clients is 0; allowed: 1 to"),
        (
            {"train__cohort": 101},
            "train.cohort is 101; allowed: at most partition.clients, which is 100.",
        ),
        ({"train__learning_rate": -0.1}, "train.learning_rate is -0.1; allowed: more"),
        ({"train__learning_rate": math.inf}, "train.learning_rate is inf; allowed"),
        ({"train__rounds": -1}, "train.rounds is -1; allowed: 0 to"),
        ({"train__rounds": 1.5}, "train.rounds is 1.5; allowed: a whole number."),
        ({"train__rounds": True}, "train.rounds is True; allowed: a whole number."),
        ({"train__rounds": "9"}, "train.rounds is '9'; allowed: a whole number."),
        (
            {"train__momentum": 1.0},
            "train.momentum is 1.0; allowed: 0 or more and less",
        ),
        ({"train__learning_rate": None}, "is None; allowed: a number."),
        ({"train__augment": 1}, "train.augment is 1; allowed: True or False."),
        ({"train__history_bytes": 10**400}, "allowed: 0 to"),
        ({"train__algorithm": "fed_avg", "train__batch_size": 0}, "1 or more with fed"),
        ({"train__local_steps": -1}, "train.local_steps is -1; allowed: 0 to"),
        ({"train__local_steps": 2.5}, "train.local_steps is 2.5; allowed: a whole num"),
        ({"train__local_steps": 5}, "train.local_steps is 5; allowed: 0 with fed_sgd,"),
        ({"train__min_participants": 26}, "at most train.cohort, which is 25."),
        (
            {"train__schedule": "warmup_cosine", "train__warmup_rounds": 2000},
            "train.warmup_rounds is 2000; allowed: less than train.rounds",
        ),
        (
            {"prune__rate": 1.0},
            "prune.rate is 1.0; allowed: 0 or more and less than 1, or auto.",
        ),
        ({"prune__rate": -0.1}, "prune.rate is -0.1"),
        ({"prune__capture_clients": 101}, "prune.capture_clients is 101; allowed"),
        (
            {"unlearn__participants": 101},
            "unlearn.participants is 101; allowed: at most partition.clients, which is",
        ),
        (
            {"fine_tune__schedule": "warmup_cosine", "fine_tune__warmup_rounds": 200},
            "fine_tune.warmup_rounds is 200; allowed: less than fine_tune.rounds,",
        ),
        (
            {"prune__weighting": "clients", "privacy__epsilon": 1.0},
            "prune.weighting is 'clients' with privacy.secure_sum, privacy.epsilon or",
        ),
        ({"prune__weighting": "clients", "privacy__secure_sum": True}, "allowed: exam"),
        ({"prune__weighting": "clients", "privacy__curve": "1,2"}, "allowed: examples"),
        ({"data__validation": 1.0}, "data.validation is 1.0; allowed: 0 or more and"),
        ({"data__choose_on": "train"}, "is 'train'; allowed: validation, test."),
        ({"data__normalise": "none"}, "allowed: constants, federated, central."),
        ({"data__name": "npz:"}, "npz:PATH, folder:PATH, hf:NAME."),
        ({"data__name": "hf:a b"}, "data.name is 'hf:a b'; allowed: digits, "),
        ({"data__name": "zip:a"}, "data.name is 'zip:a'; allowed: digits, "),
        ({"partition__kind": "file"}, "partition.file is '' with partition.kind=file"),
        (
            {"partition__kind": "pathological", "partition__classes_per_client": 11},
            "partition.classes_per_client is 11; allowed: at most 10, the classes of",
        ),
        ({"partition__column": ""}, "partition.column is ''; allowed: the name of a"),
        ({"model__name": "mine:"}, "model.name is 'mine:'; allowed: resnet8, "),
        ({"model__name": "my net:make"}, ", or package.module:factory."),
        ({"model__name": "a..b:make"}, "model.name is 'a..b:make'"),
        ({"fine_tune__target_accuracy": -0.5}, "allowed: 0 to 1, or -1."),
        ({"audit__shadows": 3}, "audit.shadows is 3; allowed: 0 to 1000, even."),
        ({"unlearn__classes": 10}, "names class 10; allowed: 0 to 9, the classes of"),
        ({"unlearn__classes": "-1"}, "names class -1; allowed: 0 to 9"),
        (
            {"unlearn__classes": (1, 1)},
            "unlearn.classes is (1, 1); allowed: class numbers, each once",
        ),
        ({"unlearn__classes": "nine"}, "unlearn.classes is 'nine'; allowed: class num"),
        ({"unlearn__classes": ()}, "unlearn.classes is (); allowed"),
        ({"unlearn__classes": True}, "unlearn.classes is True; allowed"),
        ({"unlearn__classes": 1.5}, "unlearn.classes is 1.5; allowed"),
        ({"unlearn__classes": tuple(range(10))}, "names all 10 classes of cifar10"),
        ({"unlearn__methods": "retrian"}, "'retrian' (did you mean retrain?); allowed"),
        ({"unlearn__method": "nothing"}, "unlearn.method names 'nothing'; allowed"),
        ({"unlearn__methods": "amnesiac"}, "while train.history_bytes is 0; allowed"),
        ({"phases": "pretrain,adit"}, "phases names 'adit' (did you mean audit?)"),
        ({"audit__tests": 7}, "audit.tests names '7'; allowed: all, or some of accu"),
    ],
)
def test_value_that_makes_no_sense_is_named_with_what_is_allowed(values, message):
    with pytest.raises(ConfigError) as caught:
        config_lib.validate(changed(**values))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("key", "suggestion"),
    [
        ("trian.rounds", "did you mean train.rounds?"),
        ("train.learnin_rate", "did you mean train.learning_rate?"),
        ("cohort", "did you mean train.cohort?"),
        ("unlearn.class", "did you mean unlearn.classes?"),
        ("train", "train is a group of keys; allowed: train.aggregation, "),
        ("xyz", "allowed: phases, seed, "),
        ("model.\x1b[31mé", "unknown key 'model.\\x1b[31m\\xe9'"),
    ],
)
def test_misspelt_key_gets_a_suggestion(key, suggestion):
    message = str(config_lib.unknown_key(key))
    assert suggestion in message
    assert message.isprintable() and "\n" not in message


def test_added_and_missing_keys_are_refused():
    config = config_lib.default()
    config.train.learnin_rate = 0.1
    with pytest.raises(ConfigError, match=r"did you mean train\.learning_rate"):
        config_lib.validate(config)
    config = config_lib.default()
    del config.train["rounds"]
    with pytest.raises(ConfigError, match="the key train.rounds is missing"):
        config_lib.validate(config)
    with pytest.raises(ConfigError, match="the configuration is a dict"):
        config_lib.validate({"train": {}})


def test_json_round_trip_changes_nothing():
    config = quickstart()
    config.unlearn.classes = (0, 9)
    stored = json.loads(json.dumps(config_lib.to_json(config)))
    restored = config_lib.from_json(stored)
    config_lib.validate(restored)
    assert restored.to_dict() == config.to_dict()
    assert config_lib.difference(stored, config) == []


@pytest.mark.parametrize(
    ("stored", "message"),
    [
        ({"trian": {"rounds": 3}}, "did you mean train.rounds"),
        ({"train": {"rounds": "3"}}, "train.rounds is '3'; allowed: a whole number."),
        ({"train": {"learning_rate": 10**400}}, "allowed: a number."),
        ({"train": 3}, "train is a group of keys"),
        (["train"], "the stored configuration is"),
    ],
)
def test_stored_config_that_does_not_fit_is_refused(stored, message):
    with pytest.raises(ConfigError) as caught:
        config_lib.from_json(stored)
    assert message in str(caught.value)


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
    assert config_lib.difference(old, new) == ["runtime.dtype", "train.rounds"]


def test_run_of_a_version_without_a_key_resumes_at_its_default():
    old = config_lib.to_json(config_lib.default())
    del old["train"]["label_smoothing"], old["train"]["local_steps"]
    assert config_lib.difference(old, config_lib.default()) == []
    assert config_lib.from_json(old).train.local_steps == 0
    new = changed(train__label_smoothing=0.1, train__local_steps=5)
    assert config_lib.difference(old, new) == [
        "train.label_smoothing",
        "train.local_steps",
    ]


@pytest.mark.parametrize(
    "values",
    [
        {"data__name": "npz:/data/my images.npz"},
        {"data__name": "folder:../pictures"},
        {"data__name": "hf:mnist"},
        {"data__name": "hf:ylecun/mnist"},
        {"partition__kind": "pathological", "partition__classes_per_client": 3},
        # How many clients there are is known once the data are loaded.
        {"partition__kind": "natural", "partition__clients": 1},
        {"partition__kind": "file", "partition__file": "split.json"},
        {"model__name": "my_networks.small:make_model"},
        {"model__name": "small:make"},
        {"fine_tune__schedule": "warmup_cosine", "fine_tune__warmup_rounds": 199},
        {"fine_tune__schedule": "warmup_cosine", "fine_tune__rounds": 0},
        {"train__algorithm": "fed_avg", "train__local_steps": 5},
    ],
)
def test_own_data_networks_and_partitions_are_accepted(values):
    config_lib.validate(changed(**values))


def test_a_stored_key_that_is_missing_counts_as_its_default():
    config = changed(data__validation=0.25)
    stored = config_lib.to_json(config)
    del stored["data"]["validation"], stored["data"]["normalise"]
    restored = config_lib.from_json(stored)
    assert restored.data.validation == KEYS["data.validation"].default
    assert config_lib.difference(stored, config) == ["data.validation"]
    assert config_lib.difference(stored, restored) == []


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
@given(
    st.dictionaries(
        st.sampled_from(sorted(config_lib.flatten(config_lib.default()))),
        VALUES,
        min_size=1,
        max_size=4,
    )
)
def test_any_values_are_accepted_or_refused_in_one_printable_line(values):
    config = config_lib.default()
    for key, value in values.items():
        put(config, key, value)
    try:
        config_lib.validate(config)
    except ConfigError as error:
        assert str(error).isprintable() and len(str(error)) < 2000
        return
    # What is accepted can be stored, read back and run.
    restored = config_lib.from_json(json.loads(json.dumps(config_lib.to_json(config))))
    assert config_lib.difference(config, restored) == []
    assert config_lib.phases(config) and config_lib.methods(config)


@pytest.mark.parametrize(
    "text", ["0", "-1", "a", "1,1.0", "1,,2", "nan", "inf", "1e7", "\u0661", "1;2"]
)
def test_curves_that_cannot_be_are_refused(text):
    with pytest.raises(config_lib.ConfigError, match="privacy.curve is .*allowed: num"):
        config_lib.validate(changed(privacy__curve=text))


def test_curves_are_read_in_their_order_and_may_be_added_later():
    config = changed(privacy__curve="8, 0.5,1e2")
    assert config_lib.read(config, "privacy.curve") == (8.0, 0.5, 100.0)
    assert config_lib.read(config_lib.default(), "privacy.curve") == ()
    assert config_lib.difference(config, config_lib.default()) == []


def learning_rates(rounds, kind, warmup):
    from fuprune.run.assembly import Schedule

    return Schedule(rounds, 0.1, kind, warmup).by_round()


@pytest.mark.parametrize("kind", ["constant", "cosine", "warmup_cosine"])
@pytest.mark.parametrize("rounds", [0, 1, 2, 7])
def test_every_schedule_that_is_accepted_can_be_made(kind, rounds):
    for warmup in range(max(rounds, 1)):
        config = changed(
            fine_tune__schedule=kind,
            fine_tune__rounds=rounds,
            fine_tune__warmup_rounds=warmup,
        )
        config_lib.validate(config)
        rate = learning_rates(rounds, kind, warmup)
        assert all(0 <= rate(number) <= 0.1 + 1e-6 for number in range(rounds))


@pytest.mark.parametrize(("rounds", "warmup"), [(1, 1), (2, 2), (3, 20)])
def test_a_warm_up_longer_than_the_rounds_ends_with_them(rounds, warmup):
    """Budgets are cut after the config was checked, by a short retraining for one."""
    rate = learning_rates(rounds, "warmup_cosine", warmup)
    rates = [float(rate(number)) for number in range(rounds)]
    assert rates == pytest.approx([0.1 * (n + 1) / rounds for n in range(rounds)])


@pytest.mark.parametrize("warmup", [0, 1, 3, 6])
def test_warm_up_never_starts_at_rate_zero(warmup):
    """A first round at rate 0 would be a round for nothing."""
    rate = learning_rates(7, "warmup_cosine", warmup)
    ramp = [float(rate(number)) for number in range(warmup + 1)]
    assert ramp == pytest.approx(
        [0.1 * (n + 1) / (warmup + 1) for n in range(warmup + 1)]
    )
