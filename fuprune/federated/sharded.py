"""Cohorts over several devices and hosts: the mesh, placement, and the exchange."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from fuprune.federated.program import Client, CohortFn, Shared

AXIS = "clients"
# Room on each device for the images that one exchange between hosts brings along.
EXCHANGE_BYTES = 512 * 2**20


def make_client_mesh(devices=None) -> Mesh:
    """A one-dimensional mesh with the axis `clients` over `devices` (default: all)."""
    devices = jax.devices() if devices is None else list(devices)
    return jax.make_mesh(
        (len(devices),), (AXIS,), axis_types=(AxisType.Auto,), devices=devices
    )


def make_sharded(local: CohortFn, mesh: Mesh) -> CohortFn:
    """`local` on each device's share of the cohort, totals by one psum.

    Images may be replicated, or sharded over the mesh by their leading axis (each host
    holds only its own clients' images): then the cohort's images travel once, for as
    many clients at a time as `EXCHANGE_BYTES` has room for. What is kept of each client
    is gathered on every device when the mesh spans processes.
    """
    replicated, by_client = P(), P(AXIS)
    here = jax.process_index()
    several = any(device.process_index != here for device in mesh.devices.flat)

    def compile_for(pool_spec, client_spec):
        pools: Any = (pool_spec, replicated, replicated)

        def body(shared, clients):
            if pool_spec == by_client:
                shared, clients = _exchange(shared, clients)
            total, each = local(shared, clients)
            if several:
                each = jax.lax.all_gather(each, AXIS, tiled=True)
            return jax.lax.psum(total, AXIS), each

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

    run_replicated = compile_for(replicated, by_client)
    run_sharded = compile_for(by_client, replicated)

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
    return Shared(images, shared.labels[wanted], shared.context), own
