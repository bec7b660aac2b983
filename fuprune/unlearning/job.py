"""What every method is given and gives back, and the steps that methods share.

Every method that reads clients' data reads the same participants. Every method that
fine-tunes does it in `Job.recover`, with the caller's budget and a key derived in the
same way, so that methods started with one key see the same cohorts and batches, and the
paper's speed measure (rounds to a target accuracy) is comparable.
"""

from collections.abc import Callable, Mapping, MutableMapping, Sequence
from typing import Any, NamedTuple

import jax

from fuprune.data.federated import FederatedDataset, whole_cohort
from fuprune.data.preprocess import Preprocess, to_float
from fuprune.errors import UnlearnError
from fuprune.federated.cohort import clients_of, for_each_client
from fuprune.federated.program import ClientProgram, Shared, Task, Transport
from fuprune.federated.train import FitResult
from fuprune.models.adapt import Variables
from fuprune.models.layers import loops_are_fast
from fuprune.unlearning import request as requests
from fuprune.unlearning.client_sums import MakeSum, sum_program
from fuprune.unlearning.request import ForgetRequest, participating

# (model, variables, data, key, objective=None): federated training on what remains,
# with the caller's budget and target. The objective takes the place of the
# cross-entropy, as `federated.fed_avg` takes it; methods without one leave it out.
FineTune = Callable[..., FitResult]
# (model, variables, data, key, rounds): trains so many rounds, from a fresh optimiser.
TrainRounds = Callable[[Any, Variables, FederatedDataset, jax.Array, int], FitResult]


class Stage(NamedTuple):
    """A model on the way: raw, pruned for a class, ..."""

    name: str
    model: Any  # as `models.adapt` describes
    variables: Variables


class Checkpoint(NamedTuple):
    """A network in the middle of a method's own training, to go on from."""

    variables: Variables
    images: int  # that clients trained on, as the method counts them


class UnlearnResult(NamedTuple):
    """The model after forgetting, and how it came about."""

    model: Any
    variables: Variables
    stages: tuple[Stage, ...] = ()
    fit: FitResult | None = None
    upload_bytes: int = 0  # sent by one client, apart from fine-tuning's updates
    notes: Mapping[str, Any] = {}  # JSON-able facts for the report

    def __repr__(self) -> str:
        """A line, because the arrays would fill screens."""
        stages = ", ".join(stage.name for stage in self.stages)
        size = tree_bytes(self.variables)
        network = type(self.model).__name__
        return f"UnlearnResult({network} of {size:,} bytes; stages: {stages})"


def tree_bytes(tree) -> int:
    """Bytes of all arrays of a tree, as they would travel."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


# (context, data) -> what all clients of `data` give.
RunClients = Callable[[Any, FederatedDataset], tuple[Any, Any]]


class Job(NamedTuple):
    """One job of forgetting."""

    model: Any
    variables: Variables  # trained
    data: FederatedDataset
    request: ForgetRequest  # checked
    key: jax.Array
    fine_tune: FineTune
    head: str = "head"  # the name of the last layer
    num_classes: int = 0  # how many there are; 0: as many as the last layer has
    participants: Sequence[int] | None = None  # ids of clients to read; None: all
    preprocess: Preprocess = to_float  # as in training, without augmentation
    # How clients are iterated, one of `cohort.BACKENDS`, or by a transport.
    backend: str | Transport = "auto"
    mesh: Any = None  # devices for `shard_map`; all by default
    # For a method that needs the rounds which the training kept (`rounds.KeptRound`):
    # them, how its server stepped, and how clients train in them again.
    kept_rounds: Sequence[Any] = ()
    server: Any = None
    replay: Any = None
    # For a method that trains a model of its own: how, and for how many rounds a first
    # training would go on.
    train: TrainRounds | None = None
    train_rounds: int = 1
    # What a method leaves behind and finds again when it is started again.
    checkpoints: MutableMapping[str, Checkpoint] | None = None

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes to forget, for a method that serves no other kind of request."""
        return self.request.classes

    @property
    def own_key(self) -> jax.Array:
        """Key for the method's own draws; fine-tuning uses `recovery_key`."""
        return jax.random.split(self.key, 4)[0]

    @property
    def forgotten(self) -> FederatedDataset:
        """What the request names, as far as participants hold it.

        Clients and examples are named one by one, so their holders are read whether
        or not they are participants.
        """
        data = self.data
        if self.request.kind == "classes":
            data = participating(data, self.participants)
        return requests.forgotten(data, self.request)

    @property
    def remaining(self) -> FederatedDataset:
        """What remains with the participants."""
        left = requests.remaining(self.data, self.request)
        return participating(left, self.participants)

    def run(self, program: ClientProgram) -> RunClients:
        """`run(context, data) -> (total, each)`: the program on all clients.

        `total` is summed over clients, `each` is stacked.
        """
        run_cohort = for_each_client(
            program,
            backend=self.backend,
            mesh=self.mesh,
            loops_are_fast=loops_are_fast(self.model),
        )

        def run(context, data: FederatedDataset):
            cohort = whole_cohort(data)
            shared = Shared(cohort.images, cohort.labels, context)
            return run_cohort(shared, clients_of(cohort))

        return run

    def sum(self, make_sum: MakeSum, *, chunk: int) -> RunClients:
        """`run(context, data) -> (total, number of examples)` over all clients.

        `make_sum` makes what to sum, `(context, batch) -> tree`, of the network; a
        `Transport` sends its name. A `chunk` is how many images at a time. The total is
        a tree of NumPy arrays: it has arrived on the server.
        """
        program = sum_program(
            make_sum(self.model), chunk=chunk, preprocess=self.preprocess
        )
        # A node rebuilds the program from its name and arguments.
        task = Task(make_sum.__name__, self.model, {"chunk": chunk})
        run_program = self.run(program._replace(task=task))

        def run(context, data: FederatedDataset):
            (total, examples), _ = run_program(context, data)
            if not examples:
                raise UnlearnError(
                    "no participant holds an example to read; forget less or let more "
                    "clients take part (unlearn.participants)."
                )
            return jax.device_get(total), int(examples)

        return run

    def recover(
        self,
        variables: Variables,
        *,
        stage: str = "",
        notes: Mapping[str, Any] | None = None,
        upload_bytes: int = 0,
        objective: Any = None,
    ) -> UnlearnResult:
        """Fine-tune `variables` on what remains, which ends a method.

        If `stage` is not empty, the result keeps the model from before under that name.
        An `objective` takes the place of the fine-tuning's own.
        """
        left = requests.remaining(self.data, self.request)
        own = {} if objective is None else {"objective": objective}
        fit = self.fine_tune(self.model, variables, left, recovery_key(self.key), **own)
        stages = (Stage(stage, self.model, variables),) if stage else ()
        after = fit.state.variables
        return UnlearnResult(self.model, after, stages, fit, upload_bytes, notes or {})


def recovery_key(key: jax.Array) -> jax.Array:
    """The fine-tuning's share of a method's key: the last of four, as class pruning."""
    return jax.random.split(key, 4)[3]
