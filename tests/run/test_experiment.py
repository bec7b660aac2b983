"""A run from a program: what it adopts, records, and writes nothing of."""

import json

import pytest

from fuprune import results
from fuprune.errors import FupruneError
from fuprune.run.experiment import run
from fuprune.run.store import Store
from tests.compilations import counted
from tests.settings import quickstart


def tiny(phases, **model):
    """Nothing is trained: what a step takes and leaves does not depend on it."""
    config = quickstart()
    config.phases, config.unlearn.methods = phases, "mask_logit"
    config.data.limit = config.data.test_limit = 2
    config.partition.kind = "iid"
    config.partition.clients = config.train.cohort = 2
    config.train.rounds = config.fine_tune.rounds = 0
    config.runtime.progress, config.runtime.conv = "off", "xla"
    for name, value in model.items():
        setattr(config.model, name, value)
    return config


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """The workdir of a run that stopped after its training."""
    workdir = tmp_path_factory.mktemp("trained")
    run(tiny("pretrain"), workdir)
    return workdir


def test_a_run_from_a_program_records_no_command_and_every_start(trained):
    run(tiny("pretrain"), trained, command=["a", "later", "start"])
    found = results.read_provenance(trained)
    assert found.command == []
    assert [start.command for start in found.starts] == [[], ["a", "later", "start"]]


def test_a_model_that_is_adopted_is_trained_already(trained, tmp_path):
    raw = Store(trained).model("raw")
    record = run(tiny("unlearn", load=str(raw)), tmp_path)
    assert [row.method for row in record.stages] == ["raw", "mask_logit"]
    adopted = Store(tmp_path).model("raw") / "model.safetensors"
    assert adopted.read_bytes() == (raw / "model.safetensors").read_bytes()
    # The first row of metrics is that of the method: nothing was trained before it.
    row = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    assert (row["phase"], row["round"]) == ("unlearn/mask_logit", 0)


def test_a_model_that_cannot_be_adopted_leaves_nothing_behind(trained, tmp_path):
    with pytest.raises(FupruneError, match="there is no saved model"):
        run(tiny("unlearn", load=str(tmp_path / "missing")), tmp_path)
    assert not (tmp_path / "config.json").exists()
    run(tiny("unlearn", load=str(Store(trained).model("raw"))), tmp_path)


def test_a_method_is_added_to_a_run_and_audited_with_the_others(trained):
    (trained / "audit.json").touch()
    config = tiny("pretrain,unlearn")
    assert [row.name for row in run(config, trained).methods] == ["mask_logit"]
    assert (trained / "audit.json").exists()
    config.unlearn.methods = "mask_logit,zero_class_row"
    added = run(config, trained)
    assert [row.name for row in added.methods] == ["mask_logit", "zero_class_row"]
    assert not (trained / "audit.json").exists()
    stored = results.read_provenance(trained).config
    assert stored["unlearn"]["methods"] == "mask_logit,zero_class_row"
    config.unlearn.methods = "zero_class_row"
    with pytest.raises(FupruneError, match="another value of unlearn.methods"):
        run(config, trained)


def test_a_step_without_the_one_before_it_names_it(tmp_path):
    with pytest.raises(FupruneError, match="pretrain has not been run"):
        run(tiny("unlearn"), tmp_path)


def test_a_second_seed_and_a_second_method_compile_nothing(tmp_path):
    """Nor does fine-tuning at a rate of its own: the rate is an argument."""
    config = tiny("pretrain,unlearn")
    config.unlearn.methods = "fine_tune_only,mask_logit,retrain"
    config.unlearn.retrain_seeds = 2
    config.train.rounds = config.fine_tune.rounds = 2
    config.fine_tune.learning_rate = config.train.learning_rate / 2
    compiled, ended = {}, 0
    with counted() as programs:

        def note(row):
            nonlocal ended
            compiled.setdefault(row["phase"], []).extend(programs[ended:])
            ended = len(programs)

        run(config, tmp_path, on_row=[note])
    first, tuned, *others = compiled.values()
    training = {"jit(init)", "jit(step)", "jit(finish)"}
    assert training <= set(first) and not training & set(tuned)
    assert "jit(finish_round)" not in tuned
    masked, retrained, second_seed = others
    assert masked == second_seed == []
    assert set(retrained) <= {"jit(count)"}  # of validation without the class
