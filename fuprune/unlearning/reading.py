"""How a method reads clients' data: the options that all such methods share."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fuprune.data.federated import FederatedDataset
from fuprune.data.preprocess import to_float
from fuprune.federated.client import Preprocess
from fuprune.federated.program import Transport
from fuprune.models.layers import loops_are_fast
from fuprune.unlearning.participants import participating
from fuprune.unlearning.request import ForgetRequest, forgotten, remaining


class Reading(NamedTuple):
    """How clients' data are read."""

    participants: Sequence[int] | None = None  # ids of those that are read; None: all
    preprocess: Preprocess = to_float  # as in training, without augmentation
    # How clients are iterated, one of `cohort.BACKENDS`, or by a transport.
    backend: str | Transport = "auto"
    mesh: Any = None  # devices for `shard_map`; all by default

    def programs(self, model) -> dict[str, Any]:
        """Keyword arguments of `cohort.for_each_client` for one network."""
        return dict(
            backend=self.backend, mesh=self.mesh, loops_are_fast=loops_are_fast(model)
        )

    def sums(self, model) -> dict[str, Any]:
        """Keyword arguments of `client_sums.make_client_sum` for one network."""
        return dict(preprocess=self.preprocess, **self.programs(model))

    def forgotten(
        self, data: FederatedDataset, request: ForgetRequest
    ) -> FederatedDataset:
        """What the request names, as far as participants hold it.

        Clients and examples are named one by one, so their holders are read whether
        or not they are participants.
        """
        if request.kind == "classes":
            data = participating(data, self.participants)
        return forgotten(data, request)

    def remaining(
        self, data: FederatedDataset, request: ForgetRequest
    ) -> FederatedDataset:
        """What remains with the participants."""
        return participating(remaining(data, request), self.participants)


READ_ALL = Reading()
