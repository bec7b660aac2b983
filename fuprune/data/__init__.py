"""Images, how they are dealt to clients, and how they reach the device."""

from fuprune.data.arrays import from_arrays
from fuprune.data.augment import crop_and_flip, normalise
from fuprune.data.dataset import LabelledSet
from fuprune.data.federated import (
    Cohort,
    FederatedDataset,
    drop_classes,
    drop_clients,
    drop_examples,
    federate,
    keep_classes,
    keep_clients,
    keep_examples,
    sample_cohort,
    take_clients,
    whole_cohort,
)
from fuprune.data.normalisation import (
    Statistics,
    channel_statistics,
    channel_sums,
    constant_statistics,
    statistics_of_sums,
)
from fuprune.data.partition import (
    bias_partition,
    dirichlet_partition,
    hold_out,
    iid_partition,
    natural_partition,
    pathological_partition,
    read_partition,
)
from fuprune.data.sources import (
    DamagedDataError,
    Dataset,
    DataUnavailableError,
    class_names,
    column,
    load,
    num_classes,
)

__all__ = [
    "Cohort",
    "DamagedDataError",
    "DataUnavailableError",
    "Dataset",
    "FederatedDataset",
    "LabelledSet",
    "Statistics",
    "bias_partition",
    "channel_statistics",
    "channel_sums",
    "class_names",
    "column",
    "constant_statistics",
    "crop_and_flip",
    "dirichlet_partition",
    "drop_classes",
    "drop_clients",
    "drop_examples",
    "federate",
    "from_arrays",
    "hold_out",
    "iid_partition",
    "keep_classes",
    "keep_clients",
    "keep_examples",
    "load",
    "natural_partition",
    "normalise",
    "num_classes",
    "pathological_partition",
    "read_partition",
    "sample_cohort",
    "statistics_of_sums",
    "take_clients",
    "whole_cohort",
]
