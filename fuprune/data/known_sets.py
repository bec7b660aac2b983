"""The data sets known by name: one row each, with all that is known without reading.

Any other image-classification set of TensorFlow Datasets can be loaded, too; a row adds
names of classes that need no files, constants to scale with, and more ways to come by
the images.
"""

from typing import NamedTuple


class CifarFiles(NamedTuple):
    """The official archive of a set in CIFAR's binary format."""

    archive: str
    folder: str  # inside the archive
    splits: dict[str, tuple[str, ...]]  # split -> its files in order
    labels: int  # label bytes per record; the last one is the class
    md5: dict[str, str] = {}  # file -> official sum, where it is known


class KnownSet(NamedTuple):
    """A row of the table."""

    class_names: tuple[str, ...]
    # As commonly published for the training splits, where white is 1; one per channel.
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    cifar: CifarFiles | None = None
    idx_folders: tuple[str, ...] = ()  # where others keep its files in MNIST's format


_TEN_DIGITS = tuple("0123456789")
_CIFAR10_FILES = CifarFiles(
    archive="cifar-10-binary.tar.gz",
    folder="cifar-10-batches-bin",
    splits={
        "train": tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
        "test": ("test_batch.bin",),
    },
    labels=1,
    md5={
        "data_batch_1.bin": "5dd7e06a14cb22eb9f671a540d1b7c25",
        "data_batch_2.bin": "5ea93a67294ea407fff1d09f752e9692",
        "data_batch_3.bin": "942cd6a4bcdd0dd3c604fbe906cb4421",
        "data_batch_4.bin": "ae636b3ba5c66a11e91e8cb52e771fcb",
        "data_batch_5.bin": "53f37980c15c3d472c316c40844f3f0d",
        "test_batch.bin": "803d5f7f4d78ea53de84dbe85f74fb6d",
    },
)
_CIFAR100_FILES = CifarFiles(
    archive="cifar-100-binary.tar.gz",
    folder="cifar-100-binary",
    splits={"train": ("train.bin",), "test": ("test.bin",)},
    labels=2,  # the coarse one comes first
)
KNOWN_SETS = {
    "cifar10": KnownSet(
        tuple("airplane automobile bird cat deer dog frog horse ship truck".split()),
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
        cifar=_CIFAR10_FILES,
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
        cifar=_CIFAR100_FILES,
    ),
    "digits": KnownSet(_TEN_DIGITS, mean=(0.3052,), std=(0.3760,)),
    "fashion_mnist": KnownSet(
        (
            "T-shirt/top",
            "Trouser",
            "Pullover",
            "Dress",
            "Coat",
            "Sandal",
            "Shirt",
            "Sneaker",
            "Bag",
            "Ankle boot",
        ),
        mean=(0.2860,),
        std=(0.3530,),
        idx_folders=("fashion_mnist", "fashion-mnist", "FashionMNIST/raw"),
    ),
    "kmnist": KnownSet(
        tuple("o ki su tsu na ha ma ya re wo".split()),
        idx_folders=("kmnist", "KMNIST/raw"),
    ),
    "mnist": KnownSet(
        _TEN_DIGITS,
        mean=(0.1307,),
        std=(0.3081,),
        idx_folders=("mnist", "MNIST/raw"),
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
