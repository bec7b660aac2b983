"""The work every contender does: the same clients, images, steps and learning rate.

Images are noise, since throughput does not depend on what they show. NumPy only: every
peer's environment imports this.
"""

import argparse
from typing import NamedTuple

import numpy as np

LEARNING_RATE = 0.01
MOMENTUM = 0.9
NUM_CLASSES = 10
STAGE_WIDTHS = {"resnet": (16, 32, 64), "vgg": (64, 128, 256, 512, 512)}
VGG11_DEPTHS = (1, 1, 2, 2, 2)
VGG_HIDDEN = 512


class Workload(NamedTuple):
    """One round of FedAvg: every client passes once over its images."""

    net: str  # resnet8, resnet20, ..., vgg11
    clients: int
    images: int  # of each client
    batch_size: int
    size: int  # pixels of a side

    @property
    def images_per_round(self) -> int:
        """Images trained on in a round."""
        return self.clients * self.images

    def flags(self) -> list[str]:
        """The command-line flags that say the same."""
        return [
            f"--{name.replace('_', '-')}={value}"
            for name, value in self._asdict().items()
        ]


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the workload's flags."""
    result = argparse.ArgumentParser(description=description.splitlines()[0])
    result.add_argument("--net", default="resnet20")
    result.add_argument("--clients", type=int, default=25)
    result.add_argument("--images", type=int, default=128)
    result.add_argument("--batch-size", type=int, default=32)
    result.add_argument("--size", type=int, default=32)
    result.add_argument("--warm-up", type=int, default=1)
    return result


def of(options: argparse.Namespace) -> Workload:
    """The workload that parsed flags describe."""
    return Workload(
        options.net, options.clients, options.images, options.batch_size, options.size
    )


def client_data(work: Workload, client: int) -> tuple[np.ndarray, np.ndarray]:
    """Images [n, S, S, 3] uint8 and labels [n] int32 of one client."""
    generator = np.random.default_rng(client)
    shape = (work.images, work.size, work.size, 3)
    images = generator.integers(0, 256, shape, np.uint8)
    return images, generator.integers(0, NUM_CLASSES, work.images, np.int32)


def blocks_per_stage(net: str) -> int:
    """n of a ResNet of depth 6n + 2."""
    return (int(net.removeprefix("resnet")) - 2) // 6
