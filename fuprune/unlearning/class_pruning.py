"""Federated unlearning by class-discriminative pruning: the paper's method.

Algorithm 1: participants run local_proc, the server merges what they send, scores every
channel for the class, cuts the most discriminative ones (server_proc, Algorithm 3), and
the federation fine-tunes what is left without the class. Several classes are removed
one after another (section 5.2). The paper scores by TF-IDF, removes what it cuts and is
told how much to cut; here these are options (`scores`, `then`, `auto_rate`).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np
from pydantic import Field

from fuprune.data.federated import take_clients
from fuprune.errors import InputError, check_choice
from fuprune.models.adapt import adapt
from fuprune.options import option, options
from fuprune.surgery import (
    PrunePlan,
    compact,
    kept_channels,
    layer_names,
    make_plan,
    mask,
    pin,
    plan_report,
    reset,
    trace_layers,
)
from fuprune.surgery.arrays import names
from fuprune.surgery.cutting import layer_name
from fuprune.unlearning import privacy
from fuprune.unlearning.activations import Collected, collect, merge_activations
from fuprune.unlearning.auto_rate import count_answers, judged, smallest_rate
from fuprune.unlearning.job import Job
from fuprune.unlearning.method import method
from fuprune.unlearning.privacy import Protection
from fuprune.unlearning.protocol import (
    Stage,
    UnlearnError,
    UnlearnResult,
    tree_bytes,
)
from fuprune.unlearning.reading import check_participants, choose_participants
from fuprune.unlearning.scores import SCORES, noise_floor


@options
class Options:
    """How channels are scored and cut."""

    section: ClassVar[str] = "prune"

    rate: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = option(
        0.05,
        "R, the share of channels to cut for each class; auto tries up to eight for "
        "the smallest that forgets",
    )
    score: Literal["tf_idf", "contrast"] = option(
        "tf_idf",
        "the paper's TF-IDF, or how much more the class activates a channel than the "
        "others do",
    )
    then: Literal["remove", "reset"] = option(
        "remove",
        "remove the cut channels, as in the paper, or let them start afresh",
    )
    scope: Literal["global", "layer", "balanced"] = option(
        "global",
        "cut R of all channels, R of each layer, or R of all channels with scores "
        "scaled by the width of their layer",
    )
    order: Literal["highest", "lowest", "random"] = option(
        "highest", "which TF-IDF scores are cut first; the paper cuts the highest"
    )
    min_channels: int = option(1, "fewest channels that a layer keeps", ge=1, le=4096)
    idf: Literal["paper", "released"] = option(
        "paper", "Eq. 7, or as in the authors' code"
    )
    weighting: Literal["examples", "clients"] = option(
        "examples", "how clients' statistics are weighted"
    )
    surgery: Literal["compact", "mask"] = option(
        "compact", "compact removes channels; mask zeroes them"
    )
    dense: bool = option(
        False, "also cut hidden units of dense layers, in networks of your own"
    )
    recapture: bool = option(True, "collect statistics again after each class's cut")
    capture_clients: int = option(
        0,
        "number of clients that send statistics; 0 means unlearn.participants",
        ge=0,
        le=10_000_000,
    )
    auto_images: int = option(
        6,
        "for rate=auto: images of the class, and others, that each of these clients "
        "answers on per try",
        ge=1,
        le=10_000,
    )
    auto_level: float = option(
        0.02,
        "for rate=auto: share of right answers at which the class counts as unknown",
        ge=0,
        lt=1,
    )


class ServerDecision(NamedTuple):
    """What server_proc decides for one class."""

    scores: dict[str, np.ndarray]  # layer -> [C_l] scores for the target class
    plan: PrunePlan


def server_proc(
    activations: Mapping[str, Any],
    target: int,
    rate: float,
    *,
    score: str = "tf_idf",
    scope: str = "global",
    order: str = "highest",
    min_channels: int = 1,
    idf: str = "paper",
    leaving: Sequence[int] = (),
    noise: float = 0.0,
    seed: int = 0,
) -> ServerDecision:
    """Score every channel for the class `target` and choose what to cut (Alg. 3).

    Args:
      activations: A*, layer -> [U, C_l], from `merge_activations`; the rows of absent
        classes are NaN.
      target: u', the class to forget.
      rate: R.
      score: one of `scores.SCORES`; `tf_idf` is the paper's.
      scope: `global` (the paper), `layer` or `balanced`; see `make_plan`.
      order: `highest` (the paper), `lowest` (the released code) or `random`.
      min_channels: channels left in every layer, whatever R says.
      idf: variant of Eq. 7, `paper` or `released`.
      leaving: see `score_channels`.
      noise: see `score_channels`.
      seed: of `order="random"`.

    Raises:
      UnlearnError: if the target itself is absent.
    """
    scores = score_channels(
        activations, target, score=score, idf=idf, leaving=leaving, noise=noise
    )
    plan = make_plan(
        scores, rate, scope=scope, order=order, min_channels=min_channels, seed=seed
    )
    return ServerDecision(scores, plan)


def score_channels(
    activations: Mapping[str, Any],
    target: int,
    *,
    score: str = "tf_idf",
    idf: str = "paper",
    leaving: Sequence[int] = (),
    noise: float = 0.0,
) -> dict[str, np.ndarray]:
    """Scores of all channels for one class: layer -> [C_l], in the layers' order.

    Classes that no participant holds have no row to compare with: U in Eq. 7 is the
    number of the classes that are present. The contrast compares with the classes that
    stay, so that a channel which two leaving classes share is cut for either.

    Args:
      activations: A*, layer -> [U, C_l]; the rows of absent classes are NaN.
      target: u', the class to forget.
      score: one of `scores.SCORES`.
      idf: for `tf_idf`: variant of Eq. 7, `paper` or `released`.
      leaving: all classes of the request, the target among them.
      noise: for `contrast`: deviation of privacy noise on the target's mean activation.

    Raises:
      UnlearnError: the target is absent, or no class is left to contrast it with.
    """
    check_choice("score", score, SCORES)
    # Any layer will do: a class is absent in all of them or in none.
    rows = np.asarray(next(iter(activations.values())))
    present = np.flatnonzero(~np.any(np.isnan(rows), axis=1)).tolist()
    if target not in present:
        raise UnlearnError(
            f"no statistics of class {target} arrived, because no participant holds it "
            "or too few of its examples are in them; let more clients take part "
            "(unlearn.participants), or lower privacy.min_count."
        )
    if score == "contrast":
        present = [u for u in present if u == target or u not in leaving]
        if len(present) < 2:
            raise UnlearnError(
                f"statistics of no class but {target} arrived that stays, and contrast "
                "compares with those; use prune.score=tf_idf."
            )
    if len(present) < len(rows):
        activations = {k: np.asarray(a)[present] for k, a in activations.items()}
    target = present.index(target)
    channels = sum(np.shape(a)[1] for a in activations.values())
    floor = noise_floor(noise, channels)
    scored = jax.device_get(_score_layers(dict(activations), target, floor, score, idf))
    # In the order of the layers, which decides ties; trees come back in another.
    return {layer: np.asarray(scored[layer]) for layer in activations}


@functools.partial(jax.jit, static_argnames=("score", "idf"))
def _score_layers(activations, target, floor, score, idf):
    """One program for all layers: a dozen for each width would take longer to make."""
    options = {"variant": idf} if score == "tf_idf" else {"floor": floor}
    return {
        layer: SCORES[score](a, target, **options) for layer, a in activations.items()
    }


@method("class_pruning", options=(Options, privacy.Options), reads_forgotten=True)
def class_pruning(
    job: Job, o: Options, p: privacy.Options = privacy.NOTHING
) -> UnlearnResult:
    """Forget classes by cutting their channels, then fine-tune without them.

    The network is any that `surgery.compact` takes, cut before or not. The classes of
    the request are removed one after another, and there is a stage for each. Statistics
    are of all images of the participants, the forgotten classes included, which is what
    the method needs; fine-tuning sees none of them.
    """
    if o.rate == "auto" and p.epsilon:
        raise InputError(
            "rate is 'auto', but the answers to the cuts that it tries are not covered "
            "by privacy.epsilon; set prune.rate to a number, or leave out the noise."
        )
    # With recapture, the same examples' statistics are released for each class.
    releases = len(job.classes) if o.recapture else 1
    protection = privacy.protect_statistics(p, releases=releases)
    model, variables, data = job.model, job.variables, job.data
    # The last of the four is the fine-tuning's: see `recovery_key`.
    capture_key, protect_key, plan_key, _ = jax.random.split(job.key, 4)
    participants = job.participants
    if participants is None:
        number = o.capture_clients or data.num_clients
        participants = choose_participants(capture_key, data, number)
    # Only its shape is looked at, by networks that are cut by tracing.
    example = jax.ShapeDtypeStruct((2, *data.images.shape[1:]), np.float32)
    reading: dict[str, Any] = dict(
        cohort=take_clients(data, check_participants(participants, data)),
        preprocess=job.preprocess,
        backend=job.backend,
        mesh=job.mesh,
    )
    stages: list[Stage] = []
    notes: dict[str, Any] = {"cuts": [], "model_bytes": tree_bytes(variables)}
    if protection.statement:
        notes["privacy"] = dict(protection.statement)
    upload_bytes = 0
    activations: dict[str, Any] = {}
    for number, target in enumerate(job.classes):
        kernels = _kernels(model, variables, example, o.dense)
        if not kernels:
            raise UnlearnError(
                "the network has no convolution whose channels could be cut; set "
                "prune.dense to cut the units of its dense layers."
            )
        seed_key = jax.random.fold_in(plan_key, number)
        noise_key = jax.random.fold_in(protect_key, number)
        if o.recapture or not stages:
            collected = collect(
                model,
                variables,
                num_classes=job.num_classes,
                clip=protection.clip,
                dense=o.dense,
                **reading,
            )
            upload_bytes += collected.upload_bytes
            seen = protection.show(collected, noise_key)
            activations, facts = _merged(
                collected, seen, tuple(kernels), o.weighting, protection
            )
            notes |= facts
        live = _live_channels(kernels, activations)
        decide = functools.partial(
            server_proc,
            {layer: a[:, live[layer]] for layer, a in activations.items()},
            target,
            score=o.score,
            scope=o.scope,
            order=o.order,
            min_channels=o.min_channels,
            idf=o.idf,
            leaving=job.classes,
            noise=_noise_of_means(seen, target, protection),
            # NumPy's generator ranks channels on the host, and takes a number.
            seed=int(jax.random.randint(seed_key, (), 0, 2**30)),
        )
        carry_out = functools.partial(
            _cut, model, variables, activations, live, then=o.then, key=seed_key
        )
        chosen = o.rate
        if chosen == "auto":
            ask = functools.partial(
                count_answers,
                adapt(model),
                classes=(target,),
                images=o.auto_images,
                leaving=job.classes,
                **reading,
            )

            def try_cut(
                rate, decide=decide, carry_out=carry_out, ask=ask, key=noise_key
            ):
                plan = decide(rate).plan
                _, tried, _ = carry_out(plan, example, surgery="mask")
                answers = ask(variables=tried)
                return judged(rate, protection.show(answers, key))

            tried = smallest_rate(try_cut, o.auto_level)
            chosen = tried[-1].rate
            rows = [row._asdict() for row in tried]
            notes.setdefault("auto_rate", {})[str(target)] = rows
        decision = decide(chosen)
        described = _describe(model, variables, live, decision, example)
        model, variables, activations = carry_out(
            decision.plan, example, surgery=o.surgery
        )
        notes["cuts"].append({"class": target, **described})
        stages.append(Stage(f"pruned_{target}", model, variables))
    result = job._replace(model=model).recover(
        variables, notes=notes, upload_bytes=upload_bytes
    )
    return result._replace(stages=tuple(stages))


def _noise_of_means(seen: Any, target: int, protection: Protection) -> float:
    """Deviation of the privacy noise on the target's mean activation."""
    if not protection.statement:
        return 0.0
    examples = float(np.asarray(seen.num_examples)[target])
    return float(protection.statement["sigma_total"]) / max(examples, 1.0)


def _merged(
    collected: Collected, seen, layers, weighting: str, protection: Protection
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A*, in the order of `layers`, of what the server saw; and notes."""
    merged = merge_activations(seen, weighting=weighting)
    activations = {layer: merged[layer] for layer in layers}
    notes: dict[str, Any] = {
        "participants": len(collected.clients),
        "rejected": {str(k): v for k, v in collected.rejected.items()},
    }
    absent = np.isnan(activations[layers[0]]).any(axis=1)
    if absent.any():
        # Behind a protection the server cannot tell the two apart.
        why = "suppressed" if protection.hides else "absent"
        notes[why] = np.flatnonzero(absent).tolist()
    return activations, notes


def _kernels(model, variables, example, dense: bool) -> dict[str, np.ndarray]:
    """Filters of the layers that can be cut, channels last: layer -> [..., C_l].

    In forward order, by which ties are broken; trees come back in another.
    """
    leaves = jax.tree_util.tree_leaves_with_path(jax.device_get(variables))
    at = {names(path): leaf for path, leaf in leaves}
    if hasattr(model, "wiring"):
        held = {layer_name(path): x for path, x in at.items() if path[-1] == "kernel"}
        return {layer: held[layer] for layer in layer_names(model)}
    # A network that somebody else wrote may call its kernels anything, and have the
    # channels on any axis.
    layers = trace_layers(model, variables, example, dense=dense)
    return {n: np.moveaxis(at[x.path], x.axis, -1) for n, x in layers.items()}


def _live_channels(kernels, activations) -> dict[str, np.ndarray]:
    """Positions of the channels whose filter is not zero throughout, by layer.

    A channel that an earlier cut zeroed no longer exists. If it were counted, it would
    take a part of R, of Eq. 7's mean and of min_channels.
    """
    live = {}
    for layer, a in activations.items():
        alive = np.any(kernels[layer] != 0, axis=tuple(range(kernels[layer].ndim - 1)))
        # No layer may be empty, so one that is dead throughout counts as whole.
        live[layer] = np.flatnonzero(alive) if alive.any() else np.arange(a.shape[1])
    return live


def _cut(model, variables, activations, live, plan, example, *, then, surgery, key):
    """One cut of live channels: `(model, variables, activations of what is left)`."""
    # Of the whole network: what earlier cuts killed is not among the live channels.
    plan = PrunePlan(
        {layer: live[layer][kept] for layer, kept in plan.keep.items()}, plan.spared
    )
    if then == "reset":
        afresh = reset(model, variables, plan, key=key, example=example)
        # What was measured of these channels is no longer true of them.
        left = {
            layer: np.where(np.isin(np.arange(a.shape[1]), plan.keep[layer]), a, 0.0)
            for layer, a in activations.items()
        }
        return model, afresh, left
    if surgery == "mask":
        masked = mask(model, variables, plan, example=example)
        # Zeros alone would not stay zeros under an optimizer.
        model = pin(model, variables, plan, example=example)
        return model, masked, activations
    held = kept_channels(model, variables, example=example)
    model, variables = compact(model, variables, plan, example=example)
    left = kept_channels(model, variables, example=example)
    # A depthwise layer loses more than its plan says: what nothing writes.
    activations = {
        layer: a[:, np.isin(held[layer], left[layer])]
        for layer, a in activations.items()
    }
    return model, variables, activations


def _describe(model, variables, live, decision, example) -> dict[str, Any]:
    """The cut in JSON form; channels by their ids in the uncut network."""
    channels = kept_channels(model, variables, example=example)
    if any(len(alive) < len(channels[layer]) for layer, alive in live.items()):
        # A masked network is described as the smaller one that it stands for.
        whole = PrunePlan(live)
        model, variables = compact(model, variables, whole, example=example)
        channels = kept_channels(model, variables, example=example)
    scores, cut, ids = {}, {}, {}
    for layer, keep in decision.plan.keep.items():
        original = np.asarray(channels[layer])
        scores[layer] = [float(s) for s in decision.scores[layer]]
        ids[layer] = original.tolist()
        cut[layer] = np.delete(original, keep).tolist()
    return {
        "scores": scores,
        "channels": ids,
        "cut": cut,
        "plan": [
            row._asdict()
            for row in plan_report(
                model, decision.plan, example.shape[1:], variables=variables
            )
        ],
    }
