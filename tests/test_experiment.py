"""What a run says of its length before it has begun."""

from fuprune import config as config_lib
from fuprune import experiment


def planned(**values):
    config = config_lib.default()
    config.phases = "pretrain,unlearn"
    config.train.rounds, config.fine_tune.rounds = 100, 7
    config.unlearn.methods = "class_pruning,mask_logit,retrain"
    config.unlearn.retrain_seeds = 2
    config.update_from_flattened_dict(values)
    return experiment._planned_rounds(config)


def test_retraining_counts_as_training_and_a_loaded_model_does_not():
    fine_tuned = planned(**{"unlearn.methods": "class_pruning"})
    assert fine_tuned == 100 + 7
    assert planned(**{"unlearn.methods": "class_pruning,retrain"}) == 107 + 200
    loaded = {"model.load": "models/raw", "unlearn.methods": "class_pruning"}
    assert planned(**loaded) == 7
