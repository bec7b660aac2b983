"""How a cohort of simulated clients is iterated: the one seam for hardware.

`for_each_client` turns a `ClientProgram` into one call over a whole cohort, by a host
loop, `lax.map`, `vmap` or `shard_map`. All give the same answer to float tolerance;
which one is fastest depends on the platform.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from fuprune.errors import check_choice
from fuprune.federated.program import (
    Client,
    ClientProgram,
    CohortFn,
    Receive,
    Shared,
    Transport,
)
from fuprune.federated.sharded import make_client_mesh, make_sharded

BACKENDS = ("auto", "loop", "map", "vmap", "shard_map")


def keep_compiled(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, a maker of compiled functions, with its latest results kept.

    With an argument that cannot be hashed the result is made and not kept.
    """
    kept = functools.lru_cache(maxsize=8)(make)

    @functools.wraps(make)
    def made(*arguments):
        try:
            hash(arguments)
        except TypeError:
            return make(*arguments)
        return kept(*arguments)

    return made


def clients_of(cohort) -> Client:
    """The stacked `Client` view of a `data.federated.Cohort`."""
    return Client(cohort.rows, cohort.lengths, cohort.clients)


def resolve_backend(
    backend: str,
    *,
    loops_are_fast: bool = False,
    device_count: int | None = None,
    platform: str | None = None,
) -> tuple[str, str]:
    """`(backend, inner)` that `backend` means on a platform, by default this one.

    `loops_are_fast` says that convolutions inside `lax.map` run at full speed on CPU
    (true of the oneDNN kernels, not of XLA's own). `inner` is how each device of
    `shard_map` iterates over its share.
    """
    check_choice("backend", backend, BACKENDS)
    platform = platform or jax.default_backend()
    devices = jax.device_count() if device_count is None else device_count
    # A GPU wants many clients at once; a CPU core is busy with one.
    inner = "vmap" if platform == "gpu" else "map"
    if backend == "auto":
        if platform == "cpu" and not loops_are_fast and jax.process_count() == 1:
            backend = "loop"
        else:
            backend = "shard_map" if devices > 1 else inner
    return backend, inner


def for_each_client(
    program: ClientProgram,
    *,
    receive: Receive | None = None,
    backend: str | Transport = "auto",
    mesh: Mesh | None = None,
    loops_are_fast: bool = False,
) -> CohortFn:
    """Run `program` on every client of a cohort.

    Args:
      program: the fold each client computes.
      receive: what the server makes of each client's `each`, in place of the client's
        own `(total, each)`.
      backend: `loop` (host loop over clients and steps, spread over the local
        devices), `map`, `vmap`, `shard_map` (over `mesh`) or `auto`; or a `Transport`
        to clients outside this process.
      mesh: the devices for `shard_map`; all of them by default.
      loops_are_fast: see `resolve_backend`.

    Returns:
      `run(shared, clients) -> (total, each)`, compiled inside, to be called as it is.
    """
    if not isinstance(backend, str):
        return backend(program, receive)
    if receive is not None:
        program = _received(program, receive)
    backend, inner = resolve_backend(
        backend,
        loops_are_fast=loops_are_fast,
        device_count=None if mesh is None else mesh.size,
    )
    if backend == "loop":
        return _make_loop(program)
    makers = {"map": _make_map, "vmap": _make_vmap}
    if backend != "shard_map":
        return jax.jit(makers[backend](program))
    return make_sharded(makers[inner](program), mesh or make_client_mesh())


def for_one_client(program: ClientProgram) -> CohortFn:
    """Run `program` on one client, in a process that has no cohort."""
    init, step = jax.jit(program.init), jax.jit(program.step, donate_argnums=2)
    finish = jax.jit(program.finish)

    def run(shared, client):
        carry = init(shared, client)
        # By NumPy: on the device it would be one more program to compile.
        for i in range(int(program.num_steps(jax.device_get(client)))):
            carry = step(shared, client, carry, np.int32(i))
        return finish(shared, client, carry)

    return run


def _received(program: ClientProgram, receive: Receive) -> ClientProgram:
    """The server's part joined to the client's, where both are in one process."""

    def finish(shared, client, carry):
        # The client's own total is dropped: the receiver makes the one that counts.
        _, sent = program.finish(shared, client, carry)
        return receive(shared, client, sent)

    return program._replace(finish=finish)


def _one_client(program: ClientProgram, shared: Shared, client: Client):
    carry = jax.lax.fori_loop(
        0,
        program.num_steps(client),
        lambda i, carry: program.step(shared, client, carry, i),
        program.init(shared, client),
    )
    return program.finish(shared, client, carry)


def _make_map(program: ClientProgram) -> CohortFn:
    # Compiled by itself, so that the shapes and the loop come from one tracing.
    work = jax.jit(functools.partial(_one_client, program))

    def run(shared, clients):
        # The sum needs a zero of the right shape before the first client has run.
        total, _ = jax.eval_shape(work, shared, jax.tree.map(lambda x: x[0], clients))
        zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), total)

        def body(total, client):
            contribution, each = work(shared, client)
            return jax.tree.map(jnp.add, total, contribution), each

        return jax.lax.scan(body, zero, clients)

    return run


def _make_vmap(program: ClientProgram) -> CohortFn:
    """Every client at once; a client without steps left keeps its carry."""

    def run(shared, clients):
        steps = jax.vmap(program.num_steps)(clients)

        def step(i, carry):
            new = jax.vmap(program.step, (None, 0, 0, None))(shared, clients, carry, i)

            # A step on padding would still move weights, by momentum and weight decay.
            def unless_done(new, old):
                active = (i < steps).reshape(-1, *[1] * (old.ndim - 1))
                return jnp.where(active, new, old)

            return jax.tree.map(unless_done, new, carry)

        carry = jax.vmap(program.init, (None, 0))(shared, clients)
        carry = jax.lax.fori_loop(0, jnp.max(steps), step, carry)
        totals, each = jax.vmap(program.finish, (None, 0, 0))(shared, clients, carry)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), totals), each

    return run


def _make_loop(program: ClientProgram) -> CohortFn:
    """Host loop: XLA:CPU convolutions are many times faster outside `while` loops."""
    # The carry is a model and its optimiser: donated, a step needs no second copy.
    init, step = jax.jit(program.init), jax.jit(program.step, donate_argnums=2)
    finish = jax.jit(program.finish)
    add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)

    def run(shared, clients):
        size = clients.length.shape[0]
        host = jax.device_get(clients)
        devices = jax.local_devices()[:size]
        local = [
            Shared(
                _on_device(shared.images, device),
                _on_device(shared.labels, device),
                jax.device_put(shared.context, device),
            )
            for device in devices
        ]
        totals: list[Any] = [None] * len(devices)
        each: list[Any] = [None] * size
        # Client i of every device is advanced step by step side by side, so that each
        # device's queue always holds work: dispatch is asynchronous.
        for start in range(0, size, len(devices)):
            group = [
                Client(*(x[i] for x in host))
                for i in range(start, min(start + len(devices), size))
            ]
            steps = [int(program.num_steps(client)) for client in group]
            # The last group may have fewer clients than there are devices.
            here = list(map(jax.device_put, group, devices))
            carries = list(map(init, local, here))
            for j in range(max(steps)):
                for d, client in enumerate(here):
                    if j < steps[d]:
                        carries[d] = step(local[d], client, carries[d], np.int32(j))
            for d, (client, carry) in enumerate(zip(here, carries, strict=True)):
                total, each[start + d] = finish(local[d], client, carry)
                totals[d] = total if totals[d] is None else add(totals[d], total)
        # Devices have added up their own clients; their few totals meet on the first.
        home = devices[0]
        total = functools.reduce(add, [jax.device_put(t, home) for t in totals])
        each = jax.device_put(each, home)
        return total, jax.tree.map(lambda *x: jnp.stack(x), *each)

    return run


# Pools of images and labels, by the pool and the device it was copied to.
_COPIES: dict[tuple[int, Any], jax.Array] = {}


def _on_device(pool, device):
    """A pool on `device`: copied there once, and freed with the pool itself."""
    place = (id(pool), device)
    if place not in _COPIES:
        _COPIES[place] = jax.device_put(pool, device)
        weakref.finalize(pool, _COPIES.pop, place, None)
    return _COPIES[place]
