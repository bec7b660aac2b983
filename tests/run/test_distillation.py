"""The trained model as the teacher of a run's fine-tuning."""

from types import SimpleNamespace

import jax
import numpy as np

from fuprune.run import build
from tests import reference_objective
from tests.settings import quickstart
from tests.tiny import TinyNet, tiny_variables


def test_the_teacher_is_the_trained_model_without_the_classes_to_forget():
    config = quickstart()
    assert build.fine_tune_objective(config, None, {}, (1,)) is None
    config.fine_tune.distill_weight = 0.7
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
