"""How a cohort of simulated clients is iterated: the one seam for hardware.

Everything that clients do (local training, activation statistics, Fisher sums) is a
`ClientProgram`: a fold over the client's own batches. `for_each_client` turns it into
one call over a whole cohort, by a host loop, `lax.map`, `vmap`, groups of clients
merged into wide networks, or `shard_map`; all give the same answer to float tolerance,
and which one is fastest depends on the platform.
"""

import functools
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fuprune.errors import InputError

BACKENDS = ("auto", "loop", "map", "vmap", "wide", "shard_map")
AXIS = "clients"
# Room on each device for the images that one exchange between hosts brings along.
EXCHANGE_BYTES = 512 * 2**20
# Compiled functions that each maker keeps: networks in use side by side are few.
KEPT_PROGRAMS = 8


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


class ClientProgram(NamedTuple):
    """A client's work as a fold over steps.

    `num_steps(client)` may depend on the client's length and is written with
    operators only, so that it works on traced and on NumPy integers. `finish` returns
    `(total, each)`: `total` is summed over the cohort, `each` is stacked.
    `batched`, when given, replaces `vmap` of the fold by a cheaper equivalent.
    `step_together`, when given, equals `vmap` of `step` over clients and carries, and
    is cheapest with `together` of them.
    """

    num_steps: Callable[[Client], Any]
    init: Callable[[Shared, Client], Any]
    step: Callable[[Shared, Client, Any, jax.Array], Any]
    finish: Callable[[Shared, Client, Any], tuple[Any, Any]]
    batched: Callable[[Shared, Client], tuple[Any, Any]] | None = None
    step_together: Callable[[Shared, Client, Any, jax.Array], Any] | None = None
    together: int = 1


CohortFn = Callable[[Shared, Client], tuple[Any, Any]]


def keep_compiled(make: Callable[..., Any]) -> Callable[..., Any]:
    """`make`, a maker of compiled functions, with its latest results kept.

    A function made anew is compiled anew, whatever was compiled before. Arguments are
    positional; with one that cannot be hashed the result is made and not kept.
    """
    kept = functools.lru_cache(maxsize=KEPT_PROGRAMS)(make)

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


def make_client_mesh(devices=None) -> Mesh:
    """A one-dimensional mesh with the axis `clients` over `devices` (default: all)."""
    devices = jax.devices() if devices is None else list(devices)
    return jax.make_mesh(
        (len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices
    )


def resolve_backend(
    backend: str,
    *,
    loops_are_fast: bool = False,
    device_count: int | None = None,
    process_count: int | None = None,
    platform: str | None = None,
) -> tuple[str, str]:
    """`(backend, inner)` that `backend` means on a platform, by default this one.

    `loops_are_fast` says that convolutions inside `lax.map` run at full speed on CPU
    (true of the oneDNN kernels, not of XLA's own). `inner` is how each device of
    `shard_map` iterates over its share. The counts are those of the devices and
    processes that take part; all of them by default.
    """
    if backend not in BACKENDS:
        raise InputError(
            f"backend {backend!r} is unknown; choose one of {', '.join(BACKENDS)}"
        )
    platform = platform or jax.default_backend()
    devices = jax.device_count() if device_count is None else device_count
    processes = jax.process_count() if process_count is None else process_count
    inner = {"gpu": "vmap", "tpu": "wide"}.get(platform, "map")
    if backend == "auto":
        if platform == "cpu" and not loops_are_fast and processes == 1:
            backend = "loop"
        else:
            backend = "shard_map" if devices > 1 else inner
    return backend, inner


def for_each_client(
    program: ClientProgram,
    *,
    backend: str = "auto",
    mesh: Mesh | None = None,
    loops_are_fast: bool = False,
) -> CohortFn:
    """Run `program` on every client of a cohort.

    Args:
      program: the fold each client computes.
      backend: `loop` (host loop over clients and steps, spread over the local
        devices), `map`, `vmap`, `wide` (groups of clients side by side in one network
        if the program can, else `map`), `shard_map` (over `mesh`) or `auto`.
      mesh: the devices for `shard_map`; all of them by default.
      loops_are_fast: see `resolve_backend`.

    Returns:
      `run(shared, clients) -> (total, each)`, compiled inside, to be called as it is.
    """
    backend, inner = resolve_backend(
        backend,
        loops_are_fast=loops_are_fast,
        device_count=None if mesh is None else mesh.size,
    )
    if backend == "loop":
        return _make_loop(program)
    makers = {"map": _make_map, "vmap": _make_vmap, "wide": _make_wide}
    if backend != "shard_map":
        return jax.jit(makers[backend](program))
    return _make_sharded(makers[inner](program), mesh or make_client_mesh())


def _one_client(program: ClientProgram, shared: Shared, client: Client):
    carry = jax.lax.fori_loop(
        0,
        program.num_steps(client),
        lambda i, carry: program.step(shared, client, carry, i),
        program.init(shared, client),
    )
    return program.finish(shared, client, carry)


def _make_map(program: ClientProgram) -> CohortFn:
    def run(shared, clients):
        return _in_turn(functools.partial(_one_client, program), shared, clients)

    return run


def _in_turn(work, shared: Shared, items):
    """`work(shared, item) -> (total, each)` on items [M, ...]: sums, and stacks."""
    # Compiled by itself, so that the shapes and the loop come from one tracing.
    work = jax.jit(work)
    # The sum needs a zero of the right shape before the first client has run.
    total, _ = jax.eval_shape(work, shared, jax.tree.map(lambda x: x[0], items))
    zero = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), total)

    def body(total, item):
        contribution, each = work(shared, item)
        return jax.tree.map(jnp.add, total, contribution), each

    return jax.lax.scan(body, zero, items)


def _make_vmap(program: ClientProgram) -> CohortFn:
    if program.batched is not None:
        return program.batched

    def run(shared, clients):
        totals, each = jax.vmap(lambda c: _one_client(program, shared, c))(clients)
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), totals), each

    return run


def _make_wide(program: ClientProgram) -> CohortFn:
    """`program.together` clients at a time; the last group is as small as it is."""
    if program.step_together is None:
        return _make_map(program)

    def run(shared, clients):
        size, together = clients.length.shape[0], program.together
        # Only the rest is a group of another size, which is another program.
        full = size - size % together
        outcomes = []
        if full:
            groups = jax.tree.map(
                lambda x: x[:full].reshape(-1, together, *x.shape[1:]), clients
            )
            total, each = _in_turn(
                functools.partial(_one_group, program), shared, groups
            )
            each = jax.tree.map(lambda x: x.reshape(full, *x.shape[2:]), each)
            outcomes.append((total, each))
        if full < size:
            rest = jax.tree.map(lambda x: x[full:], clients)
            outcomes.append(_one_group(program, shared, rest))
        totals, each = zip(*outcomes, strict=True)
        return (
            jax.tree.map(lambda *x: sum(x[1:], x[0]), *totals),
            jax.tree.map(lambda *x: jnp.concatenate(x), *each),
        )

    return run


def _one_group(program: ClientProgram, shared: Shared, clients: Client):
    """Every client of a group at once; those that are through wait for the others."""
    steps = jax.vmap(program.num_steps)(clients)
    step_together = program.step_together
    assert step_together is not None, "only programs that can step together come here"

    def step(i, carry):
        new = step_together(shared, clients, carry, i)

        # A step on padding would still move weights, by momentum and weight decay.
        def unless_through(new, old):
            return jnp.where((i < steps).reshape(-1, *[1] * (old.ndim - 1)), new, old)

        return jax.tree.map(unless_through, new, carry)

    carry = jax.vmap(program.init, (None, 0))(shared, clients)
    carry = jax.lax.fori_loop(0, jnp.max(steps), step, carry)
    totals, each = jax.vmap(program.finish, (None, 0, 0))(shared, clients, carry)
    return jax.tree.map(lambda x: jnp.sum(x, axis=0), totals), each


def _make_loop(program: ClientProgram) -> CohortFn:
    """Host loop: XLA:CPU convolutions are many times faster outside `while` loops."""
    # The carry is a model and its optimiser: donated, a step needs no second copy.
    init, step = jax.jit(program.init), jax.jit(program.step, donate_argnums=2)
    finish = jax.jit(program.finish)
    add = jax.jit(lambda a, b: jax.tree.map(jnp.add, a, b), donate_argnums=0)
    pools: dict[Any, tuple[Any, Any]] = {}

    def on_device(x, device):
        """A pool array on `device`, copied there once and kept while it is in use."""
        place = (device, x.shape, x.dtype)
        held = pools.get(place)
        if held is None or held[0]() is not x:
            # Weak, so that a dataset which nobody uses is freed with its copies.
            source = weakref.ref(x, lambda gone: drop(place, gone))
            held = pools[place] = (source, jax.device_put(x, device))
        return held[1]

    def drop(place, gone):
        # Another pool may have taken the place of the one that is no more.
        if place in pools and pools[place][0] is gone:
            del pools[place]

    def run(shared, clients):
        devices = jax.local_devices()
        size = clients.length.shape[0]
        host = jax.device_get(clients)
        devices = devices[: max(1, min(len(devices), size))]
        context = [jax.device_put(shared.context, d) for d in devices]
        local = [
            Shared(on_device(shared.images, d), on_device(shared.labels, d), c)
            for d, c in zip(devices, context, strict=True)
        ]
        totals: list[Any] = [None] * len(devices)
        each: list[Any] = [None] * size
        # Client i of every device is advanced step by step side by side, so that each
        # device's queue always holds work: dispatch is asynchronous.
        for start in range(0, size, len(devices)):
            group = range(start, min(start + len(devices), size))
            here = [
                jax.device_put(
                    jax.tree.map(lambda x, i=i: x[i], host), devices[i - start]
                )
                for i in group
            ]
            carries = [init(s, c) for s, c in zip(local, here, strict=False)]
            steps = [
                int(program.num_steps(Client(*(x[i] for x in host)))) for i in group
            ]
            for j in range(max(steps)):
                for d, client in enumerate(here):
                    if j < steps[d]:
                        carries[d] = step(local[d], client, carries[d], np.int32(j))
            for d, (client, carry) in enumerate(zip(here, carries, strict=True)):
                total, each[start + d] = finish(local[d], client, carry)
                totals[d] = total if totals[d] is None else add(totals[d], total)
        # Devices have added up their own clients; their few totals meet on the first.
        home = devices[0]
        gathered = [jax.device_put(t, home) for t in totals if t is not None]
        total = gathered[0]
        for other in gathered[1:]:
            total = add(total, other)
        each = jax.device_put(each, home)
        return total, jax.tree.map(lambda *x: jnp.stack(x), *each)

    return run


def _make_sharded(local: CohortFn, mesh: Mesh) -> CohortFn:
    """`local` on each device's share of the cohort, totals by one psum.

    Images may be replicated, or sharded over the mesh by their leading axis (each host
    holds only its own clients' images): then the cohort's images travel once, by an
    `all_to_all`, for as many clients at a time as `EXCHANGE_BYTES` has room for. What
    is kept of each client is gathered on every device when the mesh spans processes,
    because no process could read the others' part.
    """
    replicated, by_client = P(), P(AXIS)
    here = jax.process_index()
    several = any(device.process_index != here for device in mesh.devices.flat)

    def collected(total, each):
        if several:
            each = jax.lax.all_gather(each, AXIS, tiled=True)
        return jax.lax.psum(total, AXIS), each

    def with_replicated_pool(shared, clients):
        return collected(*local(shared, clients))

    def with_sharded_pool(shared, clients):
        images, labels, clients = _exchange(shared, clients)
        return collected(*local(Shared(images, labels, shared.context), clients))

    def wrap(body, pool_spec, client_spec):
        pools: Any = (pool_spec, replicated, replicated)
        return jax.jit(
            jax.shard_map(
                body,
                mesh=mesh,
                in_specs=(Shared(*pools), client_spec),
                out_specs=(replicated, replicated if several else by_client),
                # Gradients are taken inside the body with respect to a local copy of
                # the server's variables; with replication tracking on, they would be
                # summed over clients silently.
                check_vma=False,
            )
        )

    run_replicated = wrap(with_replicated_pool, replicated, by_client)
    run_sharded = wrap(with_sharded_pool, by_client, replicated)

    def run(shared, clients):
        size, length = clients.row.shape
        shared = shared._replace(context=on_mesh(shared.context, mesh))
        if not pool_is_sharded(shared.images):
            padded = pad_clients(clients, -size % mesh.size)
            total, each = run_replicated(shared, padded)
            return total, jax.tree.map(lambda x: x[:size], each)
        image_bytes = shared.images.nbytes // shared.images.shape[0]
        fitting = EXCHANGE_BYTES // max(1, length * image_bytes)
        block = mesh.size * max(1, min(fitting, size + mesh.size - 1) // mesh.size)
        padded = pad_clients(clients, -size % block)
        total, parts = None, []
        for first in range(0, padded.length.shape[0], block):
            part = jax.tree.map(lambda x, i=first: x[i : i + block], padded)
            # One at a time: CPU devices that meet in several programs at once can wait
            # for each other for ever.
            more, each = jax.block_until_ready(run_sharded(shared, part))
            parts.append(each)
            total = more if total is None else jax.tree.map(jnp.add, total, more)
        each = jax.tree.map(lambda *x: jnp.concatenate(x)[:size], *parts)
        return total, each

    return run


def pool_is_sharded(images) -> bool:
    """Whether the image pool is split over devices rather than held by each."""
    if isinstance(images, Tracer):
        return False
    sharding = images.sharding
    return isinstance(sharding, NamedSharding) and not sharding.is_fully_replicated


def on_mesh(tree, mesh: Mesh):
    """The tree as arrays that every device of the mesh, on any host, holds.

    Typed keys and plain numbers stay: jit takes them wherever they are.
    """
    sharding = NamedSharding(mesh, P())

    def place(x):
        dtype = getattr(x, "dtype", None)
        if dtype is None or jnp.issubdtype(dtype, jax.dtypes.prng_key):
            return x
        # Not merely equivalent: on a mesh of one device the type would still differ,
        # and the next round compile again.
        if isinstance(x, jax.Array) and x.sharding == sharding:
            return x
        if sharding.is_fully_addressable:
            return jax.device_put(x, sharding)
        host = np.asarray(x)
        return jax.make_array_from_callback(host.shape, sharding, lambda at: host[at])

    return jax.tree.map(place, tree)


def pad_clients(clients: Client, extra: int) -> Client:
    """Add `extra` clients of length zero, which do and weigh nothing."""
    if extra == 0:
        return clients
    return jax.tree.map(
        lambda x: jnp.concatenate([x, jnp.zeros((extra, *x.shape[1:]), x.dtype)]),
        clients,
    )


def _exchange(shared: Shared, clients: Client):
    """Bring each device the images of the clients it will train.

    Every device sees all rows [M, L], answers each with an image, and receives all
    devices' answers for its own M / devices clients; those of the device that holds
    the image count. Labels are on every device.
    """
    held = shared.images.shape[0]
    here = jax.lax.axis_index(AXIS)
    rows = clients.row
    answers = shared.images[jnp.clip(rows - here * held, 0, held - 1)]
    # Not a reduce-scatter: Gloo gives that half a minute, whatever its partners do.
    answers = jax.lax.all_to_all(answers, AXIS, 0, 0, tiled=True)
    share, length = rows.shape[0] // jax.lax.axis_size(AXIS), rows.shape[1]
    answers = answers.reshape(-1, share * length, *answers.shape[2:])
    own = jax.tree.map(
        lambda x: jax.lax.dynamic_slice_in_dim(x, here * share, share), clients
    )
    wanted = own.row.reshape(share * length)
    local_rows = jnp.arange(share * length, dtype=rows.dtype)
    images = answers[wanted // held, local_rows]
    own = own._replace(row=local_rows.reshape(share, length))
    return images, shared.labels[wanted], own
