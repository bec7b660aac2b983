"""What running a network on held arrays tells about its parameters."""

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from fuprune.errors import InputError
from fuprune.surgery.arrays import Path
from fuprune.surgery.held import Held, Pair, union


class SurgeryError(InputError):
    """A network or a plan that cannot be cut as it stands."""


class Layer(NamedTuple):
    """A layer whose output channels can be cut."""

    path: Path  # of its kernel among the variables
    kind: str  # "convolution" or "dense"
    channels: int  # that it has as it is
    axis: int  # of the kernel, along which its output channels lie

    @property
    def pair(self) -> Pair:
        """The axis of the kernel that a cut of its channels names."""
        return self.path, self.axis


class Whole(NamedTuple):
    """A primitive that ran on whole operands although they were held."""

    primitive: str
    reason: str
    source: str  # file and line of the network's code
    entries: int  # that were filled in for it


class Product(NamedTuple):
    """A use of a layer's kernel."""

    kind: str  # "convolution" or "dense"
    axis: int  # of the kernel, along which its output channels lie
    inputs: Held
    outputs: Held  # with the bias, if one was added
    channel: int  # axis of the outputs, along which these channels lie
    work: int  # FLOPs of all uses of the kernel, as they are computed


@dataclasses.dataclass
class Findings:
    """What an interpretation finds out about the parameters."""

    shapes: Mapping[Path, Any]  # of the variables
    reads: dict[Pair, Any] = dataclasses.field(default_factory=dict)
    products: dict[Path, Product] = dataclasses.field(default_factory=dict)
    whole: list[Whole] = dataclasses.field(default_factory=list)
    handled: set[Pair] = dataclasses.field(default_factory=set)
    # Parameters taken to die with the channels they are applied to, and what is left.
    followed: dict[Pair, list] = dataclasses.field(default_factory=dict)
    # Kernels whose output channels lie along different axes in different uses.
    disagree: set[Path] = dataclasses.field(default_factory=set)
    inner_work: int = 0  # FLOPs of products inside loops and branches

    def read(self, pair, kept):
        """An axis of a parameter is used, at these indices or (None) at all."""
        self.handled.add(pair)
        self.reads[pair] = union(self.reads.get(pair, kept), kept)

    def follow(self, pair, kept):
        """An axis of a parameter dies with the channels it is applied to."""
        self.read(pair, kept)
        self.followed.setdefault(pair, []).append(kept)

    def shared(self) -> set[Pair]:
        """Followed axes of which another use reads more: they do not die."""
        return {
            pair
            for pair, found in self.followed.items()
            if not all(np.array_equal(kept, self.reads[pair]) for kept in found)
        }

    def is_channelwise(self, path):
        """Whether only one axis of a parameter is longer than one."""
        shape = self.shapes[path].shape
        return bool(shape) and max(shape) == np.prod(shape)

    def product(self, path, found: Product):
        """A kernel was applied; of several times the last counts."""
        seen = self.products.get(path)
        if seen is not None:
            found = found._replace(work=found.work + seen.work)
            if seen.axis != found.axis:
                self.disagree.add(path)
        self.products[path] = found

    def biased(self, path, outputs):
        """A bias was added to what a kernel gave."""
        if path in self.products:
            self.products[path] = self.products[path]._replace(outputs=outputs)
