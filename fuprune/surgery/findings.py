"""What is found out about a network while its jaxpr runs on held arrays."""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fuprune.errors import InputError
from fuprune.surgery.held import Held, union

Path = tuple[str, ...]


class SurgeryError(InputError):
    """A network or a plan that cannot be cut as it stands."""


class Layer(NamedTuple):
    """A layer whose output channels can be cut."""

    path: Path  # of its kernel among the variables
    kind: str  # "convolution" or "dense"
    channels: int  # that it has as it is
    leaf: int  # number of the kernel among the leaves of the variables
    axis: int  # of the kernel, along which its output channels lie

    @property
    def pair(self) -> tuple[int, int]:
        """The axis of the kernel that a cut of its channels names."""
        return self.leaf, self.axis


class Whole(NamedTuple):
    """A primitive that ran on whole operands although they were held."""

    primitive: str
    reason: str
    source: str  # file and line of the network's code
    entries: int  # that were filled in for it
    share: float  # of all entries of its operands
    work: list[int]  # FLOPs of it, and of what is computed from its result, while whole

    @property
    def cost(self) -> int:
        """FLOPs spent on entries that were filled in."""
        return round(self.share * sum(self.work))


@dataclasses.dataclass
class Findings:
    """What an interpretation finds out about the parameters."""

    leaves: Sequence[Any]  # of the variables, or their shapes
    paths: Sequence[Path]  # of the variables
    reads: dict[tuple[int, int], Any] = dataclasses.field(default_factory=dict)
    layers: dict[int, tuple[int, str]] = dataclasses.field(default_factory=dict)
    outputs: dict[int, tuple[Held, int]] = dataclasses.field(default_factory=dict)
    inputs: dict[int, Held] = dataclasses.field(default_factory=dict)
    whole: list[Whole] = dataclasses.field(default_factory=list)
    handled: set[tuple[int, int]] = dataclasses.field(default_factory=set)

    def silent(self) -> "Findings":
        """Empty ones about the same parameters, for a function that is run again."""
        return Findings(self.leaves, self.paths)

    def read(self, pair, kept):
        """An axis of a parameter is used, at these indices or (None) at all."""
        self.handled.add(pair)
        if pair in self.reads:
            kept = union(self.reads[pair], kept)
        self.reads[pair] = kept

    def overlook(self, pair):
        """An axis of a parameter is used in a way that no dead entry changes."""
        self.handled.add(pair)

    def is_channelwise(self, leaf):
        """Whether only one axis of a parameter is longer than one."""
        shape = self.leaves[leaf].shape
        return bool(shape) and max(shape) == np.prod(shape)

    def layer(self, leaf, axis, kind, source, result, channel):
        """A kernel was applied, and gave this result, channels along this axis."""
        seen = self.layers.setdefault(leaf, (axis, kind))
        if seen[0] != axis:
            raise SurgeryError(
                f"parameter {'/'.join(self.paths[leaf])} is used twice in ways that"
                f" disagree: its output channels lie along axis {seen[0]} in one use"
                f" and {axis} in another; give each use a parameter of its own."
            )
        self.outputs.setdefault(leaf, (result, channel))
        self.inputs.setdefault(leaf, source)

    def biased(self, leaf, result):
        """A bias was added to what a kernel gave."""
        if leaf in self.outputs:
            self.outputs[leaf] = (result, self.outputs[leaf][1])
