"""Federated learning in JAX that forgets a class on request, fast, and proves it.

The method is that of Wang, Guo, Xie and Qi, *Federated Unlearning via
Class-Discriminative Pruning*. Everything here is a pure function of arrays, keys and
Flax modules; configs, files and progress live in `fuprune.run.experiment` and are not
needed by an embedding program.

Names are loaded on first use, so that `import fuprune` and the command line's own
checks do not wait for JAX.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_HOMES = {
    "fuprune.data": (
        "Cohort",
        "Dataset",
        "FederatedDataset",
        "bias_partition",
        "dirichlet_partition",
        "drop_classes",
        "federate",
        "iid_partition",
        "keep_classes",
        "sample_cohort",
        "take_clients",
        "whole_cohort",
    ),
    "fuprune.data.sources": ("class_names", "load_dataset"),
    "fuprune.data.preprocess": ("make_preprocess",),
    "fuprune.models.zoo": ("create", "from_spec", "layer_names", "spec"),
    "fuprune.federated.cohort": (
        "ClientProgram",
        "for_each_client",
        "make_client_mesh",
    ),
    "fuprune.federated.server": (
        "FedAlgorithm",
        "RoundInfo",
        "ServerState",
        "fed_avg",
        "fed_sgd",
    ),
    "fuprune.federated.train": ("FitResult", "Record", "fit", "iterate"),
    "fuprune.federated.evaluate": ("Evaluation", "make_evaluator"),
    "fuprune.unlearning.activations": (
        "ClassActivations",
        "class_activations",
        "collect",
        "merge_activations",
    ),
    "fuprune.unlearning.tfidf": (
        "inverse_document_frequency",
        "term_frequency",
        "tf_idf",
    ),
    "fuprune.surgery": (
        "PrunePlan",
        "compact",
        "cut_optimizer_state",
        "make_plan",
        "mask",
        "plan_report",
    ),
    "fuprune.unlearning.protocol": ("UnlearnFn", "UnlearnResult"),
    "fuprune.unlearning.class_pruning": ("class_pruning", "server_proc"),
    "fuprune.unlearning.methods": ("METHODS",),
    "fuprune.audit": ("AuditData", "AuditReport"),
    "fuprune.run.checkpoint": ("load", "save_model"),
    "fuprune.export": (
        "export_stablehlo",
        "load_safetensors",
        "load_stablehlo",
        "save_safetensors",
    ),
}
_PLACES = {name: home for home, names in _HOMES.items() for name in names}
__all__ = ["__version__", "audit", *sorted(_PLACES)]


def __getattr__(name: str) -> Any:
    if name == "audit":
        return importlib.import_module("fuprune.audit")
    if name == "load_dataset":
        return importlib.import_module("fuprune.data.sources").load
    if name in _PLACES:
        return getattr(importlib.import_module(_PLACES[name]), name)
    raise AttributeError(f"module 'fuprune' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
