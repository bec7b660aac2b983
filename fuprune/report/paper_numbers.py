"""The numbers the paper printed, to stand beside ours.

Typed from the tables of Wang, Guo, Xie and Qi, "Federated Unlearning via
Class-Discriminative Pruning". Accuracies are fractions. The paper's after-pruned R-set
values 11.11%, 12.50% and 14.29% are what a constant answer gives (1/9, 1/8, 1/7).
"""

from typing import NamedTuple


class Accuracies(NamedTuple):
    """U-set and R-set accuracy of one model."""

    u: float
    r: float


class BiasRow(NamedTuple):
    """One cell pair of Table 1: FedAvg, five local epochs, ResNet20, last class."""

    dataset: str
    bias: float  # q
    method: str
    rounds: int
    accuracy: Accuracies


class ErasureRow(NamedTuple):
    """One row of Table 2: FedSGD, q = 1 / number of classes, last class."""

    dataset: str
    model: str
    raw: Accuracies
    pruned: Accuracies
    fine_tuned: Accuracies
    retrained: Accuracies


class RemovalRow(NamedTuple):
    """One row of Table 3 or of the appendix: several classes of CIFAR-10."""

    model: str
    classes: tuple[int, ...]
    raw: Accuracies
    first_pruned: Accuracies
    last_pruned: Accuracies
    fine_tuned: Accuracies
    retrained: Accuracies
    speedup: float


class MembershipRow(NamedTuple):
    """One cell of Table 4: difference of attack success to retraining, CIFAR-10."""

    model: str
    classes: tuple[int, ...]
    difference: float


class DistributionRow(NamedTuple):
    """One cell of Table 5: class-wise accuracy against retraining, CIFAR-10."""

    model: str
    classes: tuple[int, ...]
    difference: float  # greatest over classes
    divergence: float  # KL


class SpeedupRow(NamedTuple):
    """What section 6.2 says of Figure 3."""

    dataset: str
    family: str  # start of the model's name
    low: float
    high: float


def _accuracies(*percentages: float) -> tuple[Accuracies, ...]:
    fractions = [round(value / 100, 6) for value in percentages]
    return tuple(map(Accuracies, fractions[::2], fractions[1::2]))


def _bias(dataset: str, bias: float, method: str, rounds: int, u: float, r: float):
    return BiasRow(dataset, bias, method, rounds, *_accuracies(u, r))


def _erasure(dataset: str, model: str, *percentages: float) -> ErasureRow:
    raw, pruned, fine_tuned, retrained = _accuracies(*percentages)
    return ErasureRow(dataset, model, raw, pruned, fine_tuned, retrained)


def _removal(model: str, classes: tuple[int, ...], numbers: str) -> RemovalRow:
    *percentages, speedup = map(float, numbers.split())
    raw, first, last, fine_tuned, retrained = _accuracies(*percentages)
    return RemovalRow(model, classes, raw, first, last, fine_tuned, retrained, speedup)


TABLE_1 = (
    _bias("cifar10", 0.10, "class_pruning", 113, 0.00, 80.13),
    _bias("cifar10", 0.45, "class_pruning", 135, 0.00, 74.45),
    _bias("cifar10", 1.00, "class_pruning", 181, 0.00, 66.87),
    _bias("cifar10", 0.10, "fisher", 610, 22.47, 80.00),
    _bias("cifar10", 0.45, "fisher", 750, 28.54, 73.79),
    _bias("cifar10", 1.00, "fisher", 1110, 19.10, 66.04),
    _bias("cifar100", 0.01, "class_pruning", 110, 0.00, 50.34),
    _bias("cifar100", 0.35, "class_pruning", 163, 0.00, 46.99),
    _bias("cifar100", 1.00, "class_pruning", 235, 0.00, 39.45),
    _bias("cifar100", 0.01, "fisher", 700, 15.33, 49.86),
    _bias("cifar100", 0.35, "fisher", 820, 14.71, 45.30),
    _bias("cifar100", 1.00, "fisher", 1190, 17.09, 38.32),
)

TABLE_2 = (
    _erasure("cifar10", "resnet20", 91.50, 83.33, 0, 20.79, 0, 86.40, 0, 86.33),
    _erasure("cifar10", "resnet32", 94.20, 83.71, 0, 11.58, 0, 86.40, 0, 86.14),
    _erasure("cifar10", "resnet44", 89.90, 83.94, 0, 22.19, 0, 86.48, 0, 86.34),
    _erasure("cifar10", "resnet56", 93.10, 84.02, 0, 11.11, 0, 86.42, 0, 86.38),
    _erasure("cifar10", "vgg11", 88.20, 84.72, 0, 18.29, 0, 87.24, 0, 87.13),
    _erasure("cifar10", "vgg13", 91.50, 84.19, 0, 15.17, 0, 89.18, 0, 89.09),
    _erasure("cifar10", "vgg16", 91.60, 84.38, 0, 17.79, 0, 89.20, 0, 89.30),
    _erasure("cifar10", "vgg19", 88.80, 83.53, 0, 11.11, 0, 89.72, 0, 89.62),
    _erasure("cifar100", "resnet20", 54.00, 50.01, 0, 5.38, 0, 57.17, 0, 57.11),
    _erasure("cifar100", "resnet32", 52.00, 51.67, 0, 1.06, 0, 59.62, 0, 59.42),
    _erasure("cifar100", "resnet44", 48.00, 53.25, 0, 1.22, 0, 60.41, 0, 59.85),
    _erasure("cifar100", "resnet56", 44.00, 52.91, 0, 1.32, 0, 59.60, 0, 59.28),
    _erasure("cifar100", "vgg11", 50.00, 53.55, 0, 1.28, 0, 59.25, 0, 58.20),
    _erasure("cifar100", "vgg13", 60.00, 51.88, 0, 3.82, 0, 59.65, 0, 59.27),
    _erasure("cifar100", "vgg16", 44.00, 50.34, 0, 1.46, 0, 59.72, 0, 59.57),
    _erasure("cifar100", "vgg19", 52.00, 52.15, 0, 1.02, 0, 58.78, 0, 58.96),
)

# Table 3 is the first three rows; the others are the appendix's.
TABLE_3_AND_APPENDIX = (
    _removal("resnet20", (0, 9), "88.70 83.01 2.10 24.57 0 32.41 0 87.12 0 87.29 8.71"),
    _removal(
        "resnet20", (0, 5), "81.90 84.71 0.25 25.04 0 26.74 0 89.62 0 89.75 10.62"
    ),
    _removal("resnet20", (5, 9), "84.70 84.01 2.10 31.74 0 37.71 0 88.37 0 88.21 8.92"),
    _removal(
        "resnet20", (0, 5, 9), "85.10 83.74 1.57 28.01 0 30.00 0 89.62 0 89.23 8.45"
    ),
    _removal(
        "resnet56", (0, 9), "91.75 83.23 1.20 12.50 0 19.38 0 87.22 0 86.38 10.33"
    ),
    _removal(
        "resnet56", (0, 5, 9), "85.57 84.66 3.82 14.29 0 33.33 0 87.10 0 87.23 9.66"
    ),
    _removal(
        "vgg11", (0, 5, 9), "83.60 85.70 0.63 17.77 0 20.61 0 88.40 0 88.34 10.77"
    ),
    _removal("vgg19", (0, 5, 9), "84.87 83.71 5.60 24.13 0 34.17 0 89.44 0 89.40 9.29"),
)

TABLE_4 = (
    MembershipRow("resnet20", (0,), 0.0035),
    MembershipRow("resnet56", (0,), 0.0047),
    MembershipRow("vgg11", (0,), 0.0039),
    MembershipRow("vgg19", (0,), 0.0040),
    MembershipRow("resnet20", (9,), 0.0046),
    MembershipRow("resnet56", (9,), 0.0050),
    MembershipRow("vgg11", (9,), 0.0028),
    MembershipRow("vgg19", (9,), 0.0037),
    MembershipRow("resnet20", (0, 9), 0.0051),
    MembershipRow("resnet56", (0, 9), 0.0063),
    MembershipRow("vgg11", (0, 9), 0.0049),
    MembershipRow("vgg19", (0, 9), 0.0056),
)

TABLE_5 = (
    DistributionRow("resnet20", (0,), 0.0033, 3.01e-6),
    DistributionRow("resnet56", (0,), 0.0046, 4.50e-6),
    DistributionRow("vgg19", (0,), 0.0035, 3.65e-6),
    DistributionRow("resnet20", (9,), 0.0027, 2.58e-6),
    DistributionRow("resnet56", (9,), 0.0043, 4.84e-6),
    DistributionRow("vgg19", (9,), 0.0032, 3.87e-6),
    DistributionRow("resnet20", (0, 9), 0.0036, 2.63e-6),
    DistributionRow("resnet56", (0, 9), 0.0059, 5.27e-6),
    DistributionRow("vgg19", (0, 9), 0.0041, 3.55e-6),
)

FIGURE_3 = (
    SpeedupRow("cifar10", "resnet", 8.9, 11.0),
    SpeedupRow("cifar10", "vgg", 7.9, 9.1),
    SpeedupRow("cifar100", "resnet", 9.9, 9.9),
    SpeedupRow("cifar100", "vgg", 8.4, 8.4),
)
