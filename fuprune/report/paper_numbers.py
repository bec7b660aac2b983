"""The numbers the paper printed, to stand beside ours.

Typed from the tables of Wang, Guo, Xie and Qi, "Federated Unlearning via
Class-Discriminative Pruning". Accuracies are fractions. The paper's after-pruned R-set
values 11.11%, 12.50% and 14.29% are what a constant answer gives (1/9, 1/8, 1/7).
"""

from typing import NamedTuple


class PaperRow(NamedTuple):
    """One row of a table; `numbers` are in the order of the table's columns."""

    dataset: str
    model: str
    numbers: tuple[float, ...]
    classes: tuple[int, ...] = ()  # forgotten; empty for the last class alone
    method: str = "class_pruning"
    bias: float | None = None  # q, where the table varies it


def _shares(percentages: str) -> tuple[float, ...]:
    return tuple(round(float(value) / 100, 6) for value in percentages.split())


def _bias(dataset: str, bias: float, method: str, rounds: int, accuracies: str):
    numbers = (rounds, *_shares(accuracies))
    return PaperRow(dataset, "resnet20", numbers, method=method, bias=bias)


def _cut(model: str, classes: tuple[int, ...], speedup: float, accuracies: str):
    return PaperRow("cifar10", model, (*_shares(accuracies), speedup), classes)


# FedAvg, five local epochs, last class: rounds, U-set and R-set accuracy.
TABLE_1 = (
    _bias("cifar10", 0.10, "class_pruning", 113, "0.00 80.13"),
    _bias("cifar10", 0.45, "class_pruning", 135, "0.00 74.45"),
    _bias("cifar10", 1.00, "class_pruning", 181, "0.00 66.87"),
    _bias("cifar10", 0.10, "fisher", 610, "22.47 80.00"),
    _bias("cifar10", 0.45, "fisher", 750, "28.54 73.79"),
    _bias("cifar10", 1.00, "fisher", 1110, "19.10 66.04"),
    _bias("cifar100", 0.01, "class_pruning", 110, "0.00 50.34"),
    _bias("cifar100", 0.35, "class_pruning", 163, "0.00 46.99"),
    _bias("cifar100", 1.00, "class_pruning", 235, "0.00 39.45"),
    _bias("cifar100", 0.01, "fisher", 700, "15.33 49.86"),
    _bias("cifar100", 0.35, "fisher", 820, "14.71 45.30"),
    _bias("cifar100", 1.00, "fisher", 1190, "17.09 38.32"),
)

# FedSGD, q = 1 / number of classes, last class: U-set and R-set accuracy of the raw,
# after-pruned, fine-tuned and re-trained model.
TABLE_2 = (
    PaperRow("cifar10", "resnet20", _shares("91.50 83.33 0 20.79 0 86.40 0 86.33")),
    PaperRow("cifar10", "resnet32", _shares("94.20 83.71 0 11.58 0 86.40 0 86.14")),
    PaperRow("cifar10", "resnet44", _shares("89.90 83.94 0 22.19 0 86.48 0 86.34")),
    PaperRow("cifar10", "resnet56", _shares("93.10 84.02 0 11.11 0 86.42 0 86.38")),
    PaperRow("cifar10", "vgg11", _shares("88.20 84.72 0 18.29 0 87.24 0 87.13")),
    PaperRow("cifar10", "vgg13", _shares("91.50 84.19 0 15.17 0 89.18 0 89.09")),
    PaperRow("cifar10", "vgg16", _shares("91.60 84.38 0 17.79 0 89.20 0 89.30")),
    PaperRow("cifar10", "vgg19", _shares("88.80 83.53 0 11.11 0 89.72 0 89.62")),
    PaperRow("cifar100", "resnet20", _shares("54.00 50.01 0 5.38 0 57.17 0 57.11")),
    PaperRow("cifar100", "resnet32", _shares("52.00 51.67 0 1.06 0 59.62 0 59.42")),
    PaperRow("cifar100", "resnet44", _shares("48.00 53.25 0 1.22 0 60.41 0 59.85")),
    PaperRow("cifar100", "resnet56", _shares("44.00 52.91 0 1.32 0 59.60 0 59.28")),
    PaperRow("cifar100", "vgg11", _shares("50.00 53.55 0 1.28 0 59.25 0 58.20")),
    PaperRow("cifar100", "vgg13", _shares("60.00 51.88 0 3.82 0 59.65 0 59.27")),
    PaperRow("cifar100", "vgg16", _shares("44.00 50.34 0 1.46 0 59.72 0 59.57")),
    PaperRow("cifar100", "vgg19", _shares("52.00 52.15 0 1.02 0 58.78 0 58.96")),
)

# Several classes of CIFAR-10: the same accuracies, after the first and last cut, and
# the speed-up. Table 3 is the first three rows; the others are the appendix's.
TABLE_3_AND_APPENDIX = (
    _cut("resnet20", (0, 9), 8.71, "88.70 83.01 2.10 24.57 0 32.41 0 87.12 0 87.29"),
    _cut("resnet20", (0, 5), 10.62, "81.90 84.71 0.25 25.04 0 26.74 0 89.62 0 89.75"),
    _cut("resnet20", (5, 9), 8.92, "84.70 84.01 2.10 31.74 0 37.71 0 88.37 0 88.21"),
    _cut("resnet20", (0, 5, 9), 8.45, "85.10 83.74 1.57 28.01 0 30.00 0 89.62 0 89.23"),
    _cut("resnet56", (0, 9), 10.33, "91.75 83.23 1.20 12.50 0 19.38 0 87.22 0 86.38"),
    _cut("resnet56", (0, 5, 9), 9.66, "85.57 84.66 3.82 14.29 0 33.33 0 87.10 0 87.23"),
    _cut("vgg11", (0, 5, 9), 10.77, "83.60 85.70 0.63 17.77 0 20.61 0 88.40 0 88.34"),
    _cut("vgg19", (0, 5, 9), 9.29, "84.87 83.71 5.60 24.13 0 34.17 0 89.44 0 89.40"),
)

# CIFAR-10: difference of the attack's success to retraining, by model.
TABLE_4 = tuple(
    PaperRow("cifar10", model, (difference,), classes)
    for classes, percentages in (
        ((0,), "0.35 0.47 0.39 0.40"),
        ((9,), "0.46 0.50 0.28 0.37"),
        ((0, 9), "0.51 0.63 0.49 0.56"),
    )
    for model, difference in zip(
        ("resnet20", "resnet56", "vgg11", "vgg19"), _shares(percentages), strict=True
    )
)

# CIFAR-10: class-wise accuracy against retraining, greatest difference and KL.
TABLE_5 = tuple(
    PaperRow("cifar10", model, numbers, classes)
    for classes, rows in (
        ((0,), ((0.0033, 3.01e-06), (0.0046, 4.5e-06), (0.0035, 3.65e-06))),
        ((9,), ((0.0027, 2.58e-06), (0.0043, 4.84e-06), (0.0032, 3.87e-06))),
        ((0, 9), ((0.0036, 2.63e-06), (0.0059, 5.27e-06), (0.0041, 3.55e-06))),
    )
    for model, numbers in zip(("resnet20", "resnet56", "vgg19"), rows, strict=True)
)

# What section 6.2 says of Figure 3: a speed-up, or the least and the greatest, of
# models by the start of their name.
FIGURE_3 = (
    PaperRow("cifar10", "resnet", (8.9, 11.0)),
    PaperRow("cifar10", "vgg", (7.9, 9.1)),
    PaperRow("cifar100", "resnet", (9.9,)),
    PaperRow("cifar100", "vgg", (8.4,)),
)
