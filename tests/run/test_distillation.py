"""The trained model as the teacher of a run's fine-tuning."""

from types import SimpleNamespace

import chex
import jax
import numpy as np
import pytest

from fuprune import load
from fuprune.results import read_curves
from fuprune.run import build
from fuprune.run.experiment import run
from tests import reference_objective
from tests.settings import quickstart
from tests.tiny import TinyNet, tiny_variables


def small_config(weight):
    config = quickstart()
    config.phases = "pretrain,unlearn"
    config.data.limit = 8
    config.partition.clients = config.train.cohort = 4
    config.train.rounds = config.fine_tune.rounds = 2
    config.fine_tune.target_accuracy = 0.0
    config.unlearn.methods = "fine_tune_only,retrain_short"
    config.fine_tune.distill_weight = weight
    config.runtime.progress = "off"
    return config


def test_fine_tuning_has_the_teacher_and_training_from_scratch_has_none(tmp_path):
    for weight in (0.0, 0.7):
        (tmp_path / str(weight)).mkdir()
        run(small_config(weight), tmp_path / str(weight))

    def variables(name):
        return [load(tmp_path / w / "models" / name)[1] for w in ("0.0", "0.7")]

    chex.assert_trees_all_equal(*variables("raw"))
    chex.assert_trees_all_equal(*variables("retrain_short"))
    with pytest.raises(AssertionError):
        chex.assert_trees_all_close(*variables("fine_tune_only"), atol=1e-4)

    def losses(weight):
        rows = read_curves(tmp_path / weight)
        tuned = [r for r in rows if r.phase == "unlearn/fine_tune_only"]
        return [row.values["loss"] for row in tuned if row.round_number]

    assert len(losses("0.0")) == 2
    assert not np.allclose(losses("0.0"), losses("0.7"), rtol=1e-3)


def test_the_teacher_is_the_trained_model_without_the_classes_to_forget():
    config = small_config(0.7)
    config.fine_tune.distill_temperature = 2.0
    teacher = TinyNet()
    variables = tiny_variables(teacher)
    objective = build.fine_tune_objective(config, teacher, variables, (1,))
    assert objective is not None
    images = jax.random.normal(jax.random.key(1), (3, 6, 6, 1))
    answers = np.asarray(teacher.apply(variables, images, train=False), np.float64)
    logits = np.asarray(jax.random.normal(jax.random.key(2), answers.shape))
    labels = np.array([0, 2, 3])
    batch = SimpleNamespace(images=images, labels=labels)
    losses = objective.losses(objective.context, logits, batch)
    expected = [
        reference_objective.distillation_loss(
            s, t, u, temperature=2.0, weight=0.7, masked=(1,)
        )
        for s, t, u in zip(logits, answers, labels, strict=True)
    ]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
