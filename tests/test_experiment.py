"""What a run says of its length before it has begun."""

from fuprune import config as config_lib
from fuprune import experiment


def planned(methods, **values):
    config = config_lib.default()
    config.phases = "pretrain,unlearn"
    config.train.rounds, config.fine_tune.rounds = 100, 7
    config.unlearn.retrain_seeds = 2
    config.unlearn.methods = methods
    config.update_from_flattened_dict(values)
    return experiment._planned_rounds(config)


def test_retraining_counts_as_training_and_a_loaded_model_does_not():
    assert planned("class_pruning") == 100 + 7
    assert planned("class_pruning,retrain") == 100 + 7 + 2 * 100
    assert planned("class_pruning", **{"model.load": "models/raw"}) == 7
