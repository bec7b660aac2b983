"""local_proc: how strongly each channel answers to each class (Eqs. 4-5, app. A.3).

Every convolution's output before normalisation is captured, passed through ReLU,
averaged over space and summed by class. Those sums and the class counts are all that
leaves a client. `merge_activations` is the first step of server_proc: A*.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.preprocess import Preprocess, to_float
from fuprune.errors import InputError, UnlearnError, check_choice
from fuprune.federated.cohort import (
    ClientProgram,
    Shared,
    clients_of,
    for_each_client,
    keep_compiled,
)
from fuprune.federated.program import Task, Transport
from fuprune.federated.uploads import check_tree, leaf_name
from fuprune.models.layers import loops_are_fast
from fuprune.surgery import capture
from fuprune.unlearning.client_sums import sum_program
from fuprune.unlearning.job import tree_bytes
from fuprune.unlearning.privacy import clip_scale

WEIGHTINGS = ("examples", "clients", "median")


class ClassActivations(NamedTuple):
    """What a client uploads: U classes, C_l channels in layer l."""

    total: dict[str, jax.Array]  # layer -> [U, C_l] sums over images of A_l
    num_examples: jax.Array  # [U] float32


class Collected(NamedTuple):
    """Statistics of a cohort as the server received them."""

    uploads: list[ClassActivations]  # of the accepted clients, host arrays
    clients: list[int]  # their ids
    rejected: dict[int, str]  # client id -> why it was turned away
    upload_bytes: int  # of one client


def pooled_convolutions(
    model, variables, images, *, dense: bool = False
) -> dict[str, jax.Array]:
    """A_l = AvgPool(ReLU(O_l)) of every convolution (Eqs. 4-5): layer -> [B, C_l].

    O_l is what the convolution gives, before any norm of the network. With `dense` the
    hidden dense layers are among them, averaged over tokens if there are any.
    """

    def pooled(output):
        # The paper's ReLU comes right after the convolution, before any norm.
        output = jnp.maximum(output.astype(jnp.float32), 0.0)
        return jnp.mean(output, axis=tuple(range(1, output.ndim - 1)))

    outputs = capture(model, variables, images, dense=dense)
    return {name: pooled(output) for name, output in outputs.items()}


def class_activations(
    model,
    variables,
    images,
    labels,
    mask=None,
    *,
    num_classes: int,
    clip: float | None = None,
    dense: bool = False,
) -> ClassActivations:
    """local_proc on one batch (Algorithm 2 of the appendix): sums and counts by class.

    Images [B, H, W, C] are floats, as the model takes them, with labels [B] and a mask
    [B], 1 for real ones; there are U = `num_classes`. With `clip`, each image's
    activations, all layers together, are scaled to an L2 norm of at most this, which
    bounds what one image can change. For `dense` see `pooled_convolutions`.
    """
    mask = jnp.ones(labels.shape) if mask is None else mask.astype(jnp.float32)
    pooled = pooled_convolutions(model, variables, images, dense=dense)
    if clip is not None:
        square = sum(jnp.sum(a * a, axis=1) for a in pooled.values())
        scale = clip_scale(jnp.sqrt(square), clip)
        pooled = {layer: a * scale[:, None] for layer, a in pooled.items()}
    # [B, U]; the row of a padded image, or of a label outside 0..U-1, is zero.
    member = jax.nn.one_hot(labels, num_classes) * mask[:, None]
    total = {
        # Padding may hold anything; a zero weight alone would let NaN through.
        layer: jnp.dot(
            member.T,
            jnp.where(mask[:, None] > 0, a, 0.0),
            precision=jax.lax.Precision.HIGHEST,
        )
        for layer, a in pooled.items()
    }
    return ClassActivations(total, jnp.sum(member, axis=0))


def activations_program(
    model,
    *,
    num_classes: int,
    batch_size: int,
    preprocess: Preprocess = to_float,
    clip: float | None = None,
    dense: bool = False,
) -> ClientProgram:
    """local_proc over all of a client's images, a batch at a time.

    Memory is bounded by the batch: a step leaves only [U, C_l] sums. `finish` gives
    `((), ClassActivations)`. The context is the server's variables.
    """
    options: dict[str, Any] = dict(num_classes=num_classes, clip=clip, dense=dense)

    def one_batch(variables, batch):
        seen = (batch.images, batch.labels, batch.mask)
        return class_activations(model, variables, *seen, **options)

    def finish(shared, client, carry):
        return (), carry

    task = Task("class_statistics", model, {**options, "batch_size": batch_size})
    program = sum_program(one_batch, chunk=batch_size, preprocess=preprocess)
    return program._replace(finish=finish, task=task)


def collect(
    model,
    variables,
    cohort,
    *,
    num_classes: int,
    batch_size: int = 64,
    preprocess: Preprocess = to_float,
    backend: str | Transport = "auto",
    mesh=None,
    clip: float | None = None,
    dense: bool = False,
) -> Collected:
    """Run local_proc on every client of a `Cohort` and check what comes in.

    Uploads with NaN, negative sums or counts, or more examples than the client has are
    turned away by client; clients with no data are not counted. `preprocess` does not
    augment; `backend` and `mesh` are those of `for_each_client`, and of a `Transport`
    only a sum may arrive. For the others see `class_activations`.
    """
    how: dict[str, Any] = dict(backend=backend, mesh=mesh, bound=clip)
    options: dict[str, Any] = dict(
        num_classes=num_classes, batch_size=batch_size, clip=clip
    )
    options |= dict(preprocess=preprocess, dense=dense)
    return ask(activations_program, model, variables, cohort, **how, **options)


def ask(
    make_program,
    model,
    variables,
    cohort,
    *,
    backend: str | Transport = "auto",
    mesh=None,
    bound: float | None = None,
    **arguments,
) -> Collected:
    """What a cohort answers in the form of class statistics, checked as they are.

    `make_program` is called with the model and the arguments, once for equal ones;
    `bound` is the largest norm of a class row per example.
    """
    named = tuple(sorted(arguments.items()))
    run = _compiled(make_program, model, backend, mesh, named)
    shared = Shared(cohort.images, cohort.labels, variables)
    total, stacked = run(shared, clients_of(cohort))
    stacked, lengths, ids = jax.device_get((stacked, cohort.lengths, cohort.clients))
    if not isinstance(backend, str):
        # The server holds no rows of remote clients: their counts are checked against
        # what they say they hold.
        lengths = backend.sizes(ids)
    if stacked is None:  # summed under masks on its way here
        return Collected([total], ids.tolist(), {}, tree_bytes(total))
    template = jax.tree.map(lambda x: x[0], stacked)
    uploads, clients, rejected = [], [], {}
    for i, (client, length) in enumerate(zip(ids.tolist(), lengths, strict=True)):
        upload = jax.tree.map(lambda x, i=i: x[i], stacked)
        if not length or not any(np.any(x) for x in jax.tree.leaves(upload)):
            continue  # it holds nothing of what was asked for, or did not answer
        reason = check_statistics(upload, template, int(length), clip=bound)
        if reason is None:
            uploads.append(upload)
            clients.append(client)
        else:
            rejected[client] = reason
    return Collected(uploads, clients, rejected, tree_bytes(template))


@keep_compiled
def _compiled(make_program, model, backend, mesh, arguments):
    program, fast = make_program(model, **dict(arguments)), loops_are_fast(model)
    return for_each_client(program, backend=backend, mesh=mesh, loops_are_fast=fast)


def merge_activations(
    uploads: Sequence[ClassActivations] | ClassActivations,
    *,
    weighting: str = "examples",
) -> dict[str, np.ndarray]:
    """A*: the mean activation of every class over the participants (Alg. 3, line 1).

    Args:
      uploads: one per client, or a single one that is already a sum over clients.
      weighting: `examples` averages over all images of a class (appendix A.3),
        `clients` averages the clients' own class means (section 5.2); a client that
        does not hold a class has no say in that class. `median` takes the median of
        those means, channel by channel, of classes that three or more hold, so that
        fewer than half of them cannot choose it; of others the mean over images.

    Returns:
      layer -> [U, C_l] float32, on the host. The row of a class that no participant
      holds is NaN, because it has no mean; `server_proc` leaves it out.
    """
    check_choice("weighting", weighting, WEIGHTINGS)
    if isinstance(uploads, ClassActivations):
        if weighting != "examples":
            raise UnlearnError(
                f"weighting is {weighting!r}, but only a sum over clients arrived, as "
                "under secure sums or noise, and it does not hold their own means; use "
                "prune.weighting=examples."
            )
        uploads = [uploads]
    if not uploads:
        raise InputError("no client's statistics arrived; capture on more clients.")
    received: list[ClassActivations] = jax.device_get(list(uploads))
    numbers = np.stack([np.asarray(u.num_examples) for u in received])  # [n, U]
    by_client = weighting == "clients"
    # Noised counts need not be whole: a class is held if its count is above zero.
    weight = np.sum(numbers > 0 if by_client else numbers, axis=0)  # [U]
    several = np.sum(numbers > 0, axis=0) > 2
    merged = {}
    for layer in uploads[0].total:
        totals = np.stack([np.asarray(u.total[layer]) for u in received])  # [n, U, C]
        means = totals / np.where(numbers > 0, numbers, np.inf)[:, :, None]
        total = np.sum(means if by_client else totals, axis=0, dtype=np.float64)
        mean = total / np.where(weight > 0, weight, np.nan)[:, None]
        mean = mean.astype(np.float32)
        if weighting == "median" and several.any():
            means[numbers == 0] = np.nan
            mean[several] = np.nanmedian(means[:, several], axis=0)
        merged[layer] = mean
    return merged


def check_statistics(upload, template, client_size: int, *, clip=None) -> str | None:
    """Says what is wrong with class statistics that came from outside, or None.

    It judges what a client of `client_size` examples measured, before any privacy
    noise, by a `template` of the same form. If clients clip, a class row of n examples
    has a norm of at most n * clip. A masked upload (secure summation) cannot be judged
    at all, which is the price of not seeing it. The reason is safe to log: names that
    the client chose are quoted and cut short.
    """
    for field in ("total", "num_examples"):
        if not hasattr(upload, field):
            return f"not class statistics: there is no {field}"
    parts = {"total": upload.total, "num_examples": upload.num_examples}
    expected = {"total": dict(template.total), "num_examples": template.num_examples}
    reason = check_tree(parts, expected)
    if reason is not None:
        return reason
    for path, leaf in jax.tree_util.tree_leaves_with_path(parts):
        bad = int(np.sum(~np.isfinite(np.asarray(leaf))))
        if bad:
            return f"{leaf_name(path)} has {bad} of {np.size(leaf)} NaN or Inf values"
    counts = np.asarray(upload.num_examples).astype(np.float64)
    if counts.min(initial=0) < 0:
        return f"num_examples has a negative count, {counts.min():.6g}"
    if np.any(counts != np.round(counts)):
        return "num_examples has a count that is not a whole number"
    if counts.sum() > client_size:
        return f"{counts.sum():.0f} examples are above the client's {client_size}"
    squares = np.zeros(counts.shape)
    for layer, leaf in upload.total.items():
        total = np.asarray(leaf).astype(np.float64)
        if total.min(initial=0) < 0:
            return f"total/{layer} has a negative sum, {total.min():.6g}"
        # Such sums would be divided by somebody else's count.
        if np.any(total[counts == 0]):
            return f"total/{layer} has sums for a class without examples"
        squares += np.sum(total**2, axis=1)
    # The client summed in float32, where rounding may pass the exact bound a little.
    if clip is not None and np.any(np.sqrt(squares) > 1.001 * clip * counts):
        return f"a class row's norm is above {clip:.6g} per example"
    return None
