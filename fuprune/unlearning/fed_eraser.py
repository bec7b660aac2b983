"""FedEraser: replay the training's kept rounds without what is to be forgotten.

Liu, Ma, Yang, Wang and Liu, "FedEraser" (IWQoS 2021). The server kept its models GM_t
and what each participant made of them, CM_t. Forgetting starts from GM_0: those who
stay train for a fraction of their epochs on what remains, which gives the direction of
a step, and the recorded updates give its length, tensor by tensor:

    d_t = mean newCM_t - new_t
    new_{t+1} = new_t + |mean CM_t - GM_t| d_t / |d_t|

Means are unweighted and over those who stay; new_1 is the mean of CM_0, which needs no
training. BatchNorm statistics are what the replayed rounds aggregate. Where classes or
examples go, everybody stays, and updates of their holders lend a step its length only:
in the first kept round only clients that held nothing of it count, and if there is none
that round is replayed like the others.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.data.federated import take_clients
from fuprune.errors import UnlearnError
from fuprune.federated.server import FedAlgorithm
from fuprune.options import option, options
from fuprune.unlearning.job import Checkpoint, Job, UnlearnResult, tree_bytes
from fuprune.unlearning.method import ALL_KINDS, method
from fuprune.unlearning.request import holders, remaining
from fuprune.unlearning.rounds import KeptRound, check_kept, keep_round


@options
class Options:
    """Options of fed_eraser."""

    section: ClassVar[str] = "fed_eraser"

    rate: float = option(
        0.5, "r: share of local epochs, or of fed_sgd's images, per round", gt=0, le=1
    )
    variant: Literal["paper", "released"] = option(
        "paper", "step lengths from the model of round t, or of t + 1 as released"
    )


class Moves(NamedTuple):
    """How each client moved the parameters w, by what it sent in round t.

    A client of FedAvg sends its change. One of FedSGD sends a gradient g; its model is
    what the server's SGD would make of it alone, momentum included:
    w + scale (g + weight_decay w) / (1 - momentum), with scale minus the learning rate.
    """

    scale: float | Callable[[int], Any] = 1.0  # a function of t if there is a schedule
    momentum: float = 0.0
    weight_decay: float = 0.0

    def changes(self, kept: KeptRound) -> Any:
        """CM_t - GM_t of each client; params-shaped, leaves [M, ...]."""
        scale = self.scale
        now = float(scale(kept.round_number) if callable(scale) else scale)
        # 1 + momentum + momentum^2 + ...: every later round repeats a part of the step.
        factor = now / (1.0 - self.momentum)

        def moved(update, w):
            return (factor * (update + self.weight_decay * w)).astype(w.dtype)

        return jax.tree.map(moved, kept.updates, kept.variables["params"])


class Replay(NamedTuple):
    """How the kept rounds are replayed."""

    algorithm: FedAlgorithm  # with `keep_updates=True`, and less local work
    moves: Moves = Moves()  # of the training's clients, and of those who stay


def calibration_epochs(rate: float, local_epochs: int) -> int:
    """ceil(r E): local epochs, or the bound on local steps, of a replayed round."""
    # 0.1 * 10 is 1, which binary fractions may not know.
    return max(1, math.ceil(rate * local_epochs - 1e-9))


@method(
    "fed_eraser",
    serves=ALL_KINDS,
    options=Options,
    fine_tunes=False,
    needs="history_interval",
)
def fed_eraser(job: Job, o: Options) -> UnlearnResult:
    """Replay the kept rounds on what remains; nothing is fine-tuned afterwards.

    The variant `released` has a slip of the code that others uploaded again: lengths
    are measured from the next kept model GM_{t+1}, or the final one. The job's
    checkpoints hold the model after the last replayed round, by the round's place.
    """
    return _erase(job, o.variant)


@method(
    "fed_eraser_uncalibrated",
    serves=ALL_KINDS,
    options=Options,
    fine_tunes=False,
    needs="history_interval",
    control="adds up recorded updates and trains nothing",
)
def fed_eraser_uncalibrated(job: Job, o: Options) -> UnlearnResult:
    """Add up the recorded mean updates of those who stay, and train nothing.

    BatchNorm statistics are the trained model's.
    """
    return _erase(job, o.variant, calibrate=False)


def _erase(job: Job, variant: str, *, calibrate: bool = True) -> UnlearnResult:
    rounds, replay, variables = job.kept_rounds, job.replay, job.variables
    check_kept(rounds)
    left = remaining(job.data, job.request)
    lengths = np.asarray(jax.device_get(left.lengths))
    tainted = np.isin(np.arange(len(lengths)), holders(job.data, job.request))
    checkpoints = {} if job.checkpoints is None else job.checkpoints
    state, seen, done = dict(rounds[0].variables), 0, 0
    # At most one, unless the process was killed before it dropped the one before.
    for name in sorted(checkpoints)[-1:]:
        last, done = checkpoints[name], int(name) + 1
        state, seen = dict(last.variables), int(last.images)
    for number, old in enumerate(rounds):
        stays = lengths[old.clients] > 0
        clean = stays & ~tainted[old.clients]
        if not stays.any() or calibrate and number < done:
            continue
        changes = replay.moves.changes(old)
        if not calibrate:
            state = _added(state, _mean(changes, stays))
        elif number == 0 and clean.any():
            # Without a checkpoint: it trains nothing, and is quickly done again.
            state = _added(state, _mean(changes, clean))
        else:
            recorded = _mean(changes, stays)
            if variant == "released":
                later = [kept.variables for kept in rounds[number + 1 : number + 2]]
                after = (*later, variables)[0]["params"]
                # (CM_t - GM_t) + (GM_t - GM_{t+1}) = CM_t - GM_{t+1}.
                recorded = jax.tree.map(
                    lambda change, now, then: change + (np.float64(now) - then),
                    recorded,
                    old.variables["params"],
                    jax.device_get(after),
                )
            cohort = take_clients(left, old.clients[stays].tolist())
            state, examples = _replayed(job, state, cohort, old, recorded)
            seen += examples
            # Leading zeros: names sort as their numbers do.
            checkpoints[f"{number:08d}"] = Checkpoint(state, seen)
            for name in sorted(checkpoints)[:-1]:
                del checkpoints[name]
    # Recorded changes are of parameters only, and nothing trained new statistics.
    if not calibrate and "batch_stats" in variables:
        state["batch_stats"] = variables["batch_stats"]
    made = {name: jax.tree.map(jnp.asarray, state[name]) for name in variables}
    notes = {"variant": variant, "kept_rounds": len(rounds), "images": seen}
    upload_bytes = tree_bytes(variables) if calibrate else 0
    return UnlearnResult(job.model, made, upload_bytes=upload_bytes, notes=notes)


def _replayed(job: Job, state, cohort, kept: KeptRound, recorded):
    """One calibrated round: `(variables after it, images trained on)`."""
    replay = job.replay
    start = replay.algorithm.init(jax.tree.map(jnp.asarray, state))
    # The schedule of the learning rate is where it was in the training.
    start = start._replace(round_number=jnp.asarray(kept.round_number, jnp.int32))
    # By the round's number, so that a replay which goes on draws the same batches.
    key = jax.random.fold_in(job.key, kept.round_number)
    end, info = replay.algorithm.round(start, cohort, key)
    found = keep_round(kept.round_number, state, info)
    if not len(found.clients):
        return state, 0
    direction = _mean(replay.moves.changes(found), slice(None))
    step = jax.tree.map(calibrated_step, recorded, direction)
    after = jax.device_get(dict(end.variables))
    after["params"] = _added(state, step)["params"]
    for leaf in jax.tree.leaves(after):
        if not np.all(np.isfinite(leaf)):
            raise UnlearnError(
                f"the replay of round {kept.round_number + 1} diverged: a value is not "
                "finite; lower train.learning_rate."
            )
    return after, int(info.seen)


def calibrated_step(recorded: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """The direction of one tensor's change with the length of the recorded one.

    A direction of length zero has none: the tensor stays where it is.
    """
    length = np.linalg.norm(direction)
    if not length > 0:
        return np.zeros_like(direction)
    return np.linalg.norm(recorded) / length * direction


def _mean(changes, chosen):
    """Unweighted mean over the chosen clients, float64; leaves [M, ...] -> [...]."""
    return jax.tree.map(lambda x: np.mean(x[chosen], axis=0, dtype=np.float64), changes)


def _added(state, change) -> dict[str, Any]:
    """The variables with their parameters changed."""
    params = jax.tree.map(
        lambda w, c: np.asarray(np.asarray(w, np.float64) + c, np.asarray(w).dtype),
        state["params"],
        change,
    )
    return {**state, "params": params}
