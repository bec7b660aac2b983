"""Images, how they are dealt to clients, and how they reach the device."""

from fuprune.data.augment import crop_and_flip, normalise
from fuprune.data.federated import (
    Cohort,
    FederatedDataset,
    drop_classes,
    federate,
    keep_classes,
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
from fuprune.data.partition import bias_partition, dirichlet_partition, iid_partition
from fuprune.data.sources import (
    DamagedDataError,
    Dataset,
    DataUnavailableError,
    class_names,
    load,
    num_classes,
)

__all__ = [
    "Cohort",
    "DamagedDataError",
    "DataUnavailableError",
    "Dataset",
    "FederatedDataset",
    "Statistics",
    "bias_partition",
    "channel_statistics",
    "channel_sums",
    "class_names",
    "constant_statistics",
    "crop_and_flip",
    "dirichlet_partition",
    "drop_classes",
    "federate",
    "iid_partition",
    "keep_classes",
    "load",
    "normalise",
    "num_classes",
    "sample_cohort",
    "statistics_of_sums",
    "take_clients",
    "whole_cohort",
]
