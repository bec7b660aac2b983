"""What a client computes and what it can see: a `ClientProgram` and its arguments."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import numpy as np


class Client(NamedTuple):
    """One client as the program sees it, or a cohort of them with a leading axis."""

    row: jax.Array  # [L] int32, indices into the image pool
    length: jax.Array  # [] int32, how many of them are real
    client_id: jax.Array  # [] int32


class Shared(NamedTuple):
    """What every client of the cohort can read."""

    images: jax.Array  # [N, H, W, C] uint8
    labels: jax.Array  # [N] int32
    context: Any  # pytree: server variables, keys, ...


class Task(NamedTuple):
    """A program as plain data, from which another process makes the same program."""

    name: str  # of the maker
    model: Any  # the network; it travels as its spec
    arguments: Mapping[str, Any] = {}  # JSON-able


class ClientProgram(NamedTuple):
    """A client's work as a fold over steps.

    `num_steps(client)` may depend on the client's length and is written with
    operators only, so that it works on traced and on NumPy integers. `finish` returns
    `(total, each)`: `total` is summed over the cohort, `each` is stacked.
    `task`, when given, describes the program to a `Transport`.
    """

    num_steps: Callable[[Client], Any]
    init: Callable[[Shared, Client], Any]
    step: Callable[[Shared, Client, Any, jax.Array], Any]
    finish: Callable[[Shared, Client, Any], tuple[Any, Any]]
    task: Task | None = None


CohortFn = Callable[[Shared, Client], tuple[Any, Any]]
# The server's part, on what one client sent: `(shared, client, each) -> (total, each)`.
Receive = Callable[[Shared, Client, Any], tuple[Any, Any]]


class Transport(Protocol):
    """A backend whose clients and their data are not in this process."""

    def __call__(
        self, program: ClientProgram, receive: Receive | None = None
    ) -> CohortFn:
        """Run a program that has a `task` on the clients of a cohort."""
        ...

    def sizes(self, clients: np.ndarray) -> np.ndarray:
        """How many examples clients [M] say they hold, [M]."""
        ...

    def training(self, learning_rate: float, objective: Any) -> "Transport":
        """The same clients, who train at a rate, its peak, with an objective."""
        ...
