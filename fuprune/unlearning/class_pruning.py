"""Federated unlearning by class-discriminative pruning: the paper's method.

Algorithm 1: participants run local_proc, the server merges what they send, scores every
channel for the class, cuts the most discriminative ones (server_proc, Algorithm 3), and
the federation fine-tunes what is left without the class. Several classes are removed
one after another (section 5.2).
"""

import functools
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import jax
import numpy as np
from pydantic import Field

from fuprune.data.federated import take_clients
from fuprune.errors import InputError, UnlearnError, check_choice
from fuprune.models.adapt import adapt
from fuprune.options import one_of, option, options
from fuprune.surgery import (
    PrunePlan,
    compact,
    kept_channels,
    make_plan,
    mask,
    pin,
    plan_report,
    reset,
    trace_layers,
)
from fuprune.unlearning import auto_rate, privacy
from fuprune.unlearning.activations import ask, collect, merge_activations
from fuprune.unlearning.job import Job, Stage, UnlearnResult
from fuprune.unlearning.method import method
from fuprune.unlearning.request import check_participants, choose_participants
from fuprune.unlearning.scores import SCORES, filters, noise_floor


@options
class Options:
    """How channels are scored and cut."""

    section: ClassVar[str] = "prune"

    rate: Annotated[float, Field(ge=0, lt=1)] | Literal["auto"] = option(
        0.05, "R, the share of channels to cut per class; auto tries up to eight"
    )
    score: Annotated[str, one_of(SCORES)] = option(
        "tf_idf", "the paper's TF-IDF, the lift over others, or how few need a channel"
    )
    then: Literal["remove", "reset"] = option(
        "remove", "remove the cut channels, as in the paper, or let them start afresh"
    )
    scope: Literal["global", "layer", "balanced"] = option(
        "global", "R of all channels, of each layer, or of all with scores by width"
    )
    order: Literal["highest", "lowest", "random"] = option(
        "highest", "which scores are cut first; the paper cuts the highest"
    )
    min_channels: int = option(1, "fewest channels that a layer keeps", ge=1, le=4096)
    idf: Literal["paper", "released"] = option(
        "paper", "Eq. 7, or as in the authors' code"
    )
    weighting: Literal["examples", "clients", "median"] = option(
        "examples", "of clients' statistics; a minority cannot move the median far"
    )
    surgery: Literal["compact", "mask"] = option(
        "compact", "compact removes channels; mask zeroes them"
    )
    dense: bool = option(False, "also cut hidden units of dense layers")
    recapture: bool = option(True, "collect statistics again after each class's cut")
    capture_clients: int = option(
        0, "clients that send statistics; 0: unlearn.participants", ge=0, le=10_000_000
    )
    auto_images: int = option(
        6, "for rate=auto: a client's images of each kind, per try", ge=1, le=10_000
    )
    auto_level: float = option(
        0.02, "for rate=auto: share of right answers that is not knowing", ge=0, lt=1
    )


class ServerDecision(NamedTuple):
    """What server_proc decides for one class."""

    scores: dict[str, np.ndarray]  # layer -> [C_l]
    plan: PrunePlan


def server_proc(
    activations: Mapping[str, Any],
    target: int,
    rate: float,
    *,
    score: str = "tf_idf",
    idf: str = "paper",
    **cut: Any,
) -> ServerDecision:
    """Score every channel for the class `target` and choose what to cut (Alg. 3).

    `rate` (R) and `cut` are arguments of `surgery.make_plan`.
    """
    scores = score_channels(activations, target, score=score, idf=idf)
    return ServerDecision(scores, make_plan(scores, rate, **cut))


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

    Of the activations A*, layer -> [U, C_l], the rows of absent classes are NaN, and U
    in Eq. 7 is the number of those that are present. For `idf` see Eq. 7. The contrast
    compares with the classes that stay, so that a channel which two `leaving` classes
    share is cut for either; `noise` is the deviation of privacy noise on the target's
    mean activation.
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
    held = {layer: np.asarray(a)[present] for layer, a in activations.items()}
    floor = noise_floor(noise, sum(a.shape[1] for a in held.values()))
    target = present.index(target)
    scored = jax.device_get(_score_layers(held, target, floor, score, idf))
    # In the order of the layers, which decides ties; trees come back in another.
    return {layer: np.asarray(scored[layer]) for layer in activations}


@functools.partial(jax.jit, static_argnames=("score", "idf"))
def _score_layers(activations, target, floor, score, idf):
    """One program for all layers: a dozen for each width would take longer to make."""
    options = {"tf_idf": {"variant": idf}, "contrast": {"floor": floor}}.get(score, {})
    return {
        layer: SCORES[score](a, target, **options) for layer, a in activations.items()
    }


@method("class_pruning", options=(Options, privacy.Options), reads_forgotten=True)
def class_pruning(
    job: Job, o: Options, p: privacy.Options = privacy.NOTHING
) -> UnlearnResult:
    """Forget classes by cutting their channels, then fine-tune without them.

    The classes of the request are removed one after another, and there is a stage for
    each. Statistics are of all images of the participants, the forgotten classes
    included; fine-tuning sees none of them.
    """
    if o.rate == "auto" and p.epsilon:
        raise InputError(
            "rate is 'auto', but the answers to the cuts that it tries are not covered "
            "by privacy.epsilon; set prune.rate to a number, or leave out the noise."
        )
    # What was measured of channels that start afresh is no longer true of them.
    again = o.recapture or o.then == "reset"
    releases = len(job.classes) if again else 1  # of the same examples' statistics
    protection = privacy.protect_statistics(p, releases=releases)
    # The last of the four is the fine-tuning's: see `recovery_key`.
    capture_key, protect_key, plan_key, _ = jax.random.split(job.key, 4)
    participants = job.participants
    if participants is None:
        number = o.capture_clients or job.data.num_clients
        participants = choose_participants(capture_key, job.data, number)
    reading: dict[str, Any] = dict(
        cohort=take_clients(job.data, check_participants(participants, job.data)),
        preprocess=job.preprocess,
        backend=job.backend,
        mesh=job.mesh,
    )
    asked: dict[str, Any] = dict(clip=protection.clip, dense=o.dense)
    asked["num_classes"] = job.num_classes
    # Only its shape is looked at.
    example = jax.ShapeDtypeStruct((2, *job.data.images.shape[1:]), np.float32)
    model, variables, order = _without_dead_channels(job, example, o.dense)
    # By their ids in the uncut network, as they are and as they were.
    whole = kept_channels(job.model, job.variables, example=example)
    channels = measured = kept_channels(model, variables, example=example)
    stages: list[Stage] = []
    notes: dict[str, Any] = {"cuts": []}
    if protection.statement:
        notes["privacy"] = dict(protection.statement)
    upload_bytes, activations, seen = 0, {}, None
    for number, target in enumerate(job.classes):
        seed_key = jax.random.fold_in(plan_key, number)
        noise_key = jax.random.fold_in(protect_key, number)
        if again or not stages:
            collected = collect(model, variables, **asked, **reading)
            upload_bytes += collected.upload_bytes
            seen = protection.show(collected, noise_key)
            merged = merge_activations(seen, weighting=o.weighting)
            # Trees come back sorted by name, and the order of layers decides ties.
            activations = {layer: merged[layer] for layer in order if layer in merged}
            notes["participants"] = len(collected.clients)
            notes["rejected"] = {str(k): v for k, v in collected.rejected.items()}
            absent = np.isnan(next(iter(activations.values()))).any(axis=1)
            if absent.any():
                # Behind a protection the server cannot tell the two apart.
                why = "suppressed" if protection.hides else "absent"
                notes[why] = np.flatnonzero(absent).tolist()
        else:
            # A depthwise layer loses more than its plan says: what nothing writes.
            activations = {
                layer: a[:, np.isin(measured[layer], channels[layer])]
                for layer, a in activations.items()
            }
        measured = channels
        scores = score_channels(
            activations,
            target,
            score=o.score,
            idf=o.idf,
            leaving=job.classes,
            noise=protection.deviation_of_mean(seen, target),
        )
        plan_at = functools.partial(
            make_plan,
            scores,
            scope=o.scope,
            order=o.order,
            min_channels=o.min_channels,
            # NumPy's generator ranks channels on the host, and takes a number.
            seed=int(jax.random.randint(seed_key, (), 0, 2**30)),
        )
        cut = functools.partial(mask, model, variables, example=example)
        if o.then == "reset":
            cut = functools.partial(
                reset, model, variables, key=seed_key, example=example
            )
        rate = o.rate
        if rate == "auto":
            know = functools.partial(
                ask,
                auto_rate.answers_program,
                adapt(model),
                # No client is right more often than it looked.
                bound=1.0,
                classes=(target,),
                images=o.auto_images,
                leaving=job.classes,
                **reading,
            )

            def try_cut(rate, plan_at=plan_at, cut=cut, know=know, key=noise_key):
                answers = know(variables=cut(plan_at(rate)))
                return auto_rate.judged(rate, protection.show(answers, key))

            tried = auto_rate.smallest_rate(try_cut, o.auto_level)
            rate = tried[-1].rate
            rows = [row._asdict() for row in tried]
            notes.setdefault("auto_rate", {})[str(target)] = rows
        plan = plan_at(rate)
        # Channels that start afresh leave the network as large as it was.
        left = plan_at(0.0) if o.then == "reset" else plan
        rows = plan_report(model, left, example.shape[1:], variables=variables)
        described = _describe(channels, scores, plan, rows)
        notes["cuts"].append({"class": target, **described})
        if o.then == "reset":
            variables = cut(plan)
        else:
            model, variables = compact(model, variables, plan, example=example)
            channels = kept_channels(model, variables, example=example)
        result = (model, variables)
        if o.surgery == "mask" and o.then == "remove":
            kept = {
                layer: np.flatnonzero(np.isin(whole[layer], ids))
                for layer, ids in channels.items()
            }
            # Zeros alone would not stay zeros under an optimizer.
            what = (job.model, job.variables, PrunePlan(kept))
            result = pin(*what, example=example), mask(*what, example=example)
        stages.append(Stage(f"pruned_{target}", *result))
    last = stages[-1]
    result = job._replace(model=last.model).recover(
        last.variables, notes=notes, upload_bytes=upload_bytes
    )
    return result._replace(stages=tuple(stages))


def _without_dead_channels(job: Job, example, dense: bool) -> tuple[Any, Any, list]:
    """The network without channels of zeros, and the layers to cut in forward order.

    A channel that an earlier cut zeroed would take a part of R, of Eq. 7's mean and of
    min_channels.
    """
    layers = trace_layers(job.model, job.variables, example, dense=dense)
    if not layers:
        raise UnlearnError(
            "the network has no convolution whose channels could be cut; set "
            "prune.dense to cut the units of its dense layers."
        )
    kernels = filters(layers, job.variables)
    alive = {name: np.any(x, axis=0) for name, x in kernels.items()}
    # No layer may be empty, so one that is dead throughout counts as whole.
    plan = {n: np.flatnonzero(x) for n, x in alive.items() if x.any() and not x.all()}
    if not plan:
        return job.model, job.variables, list(layers)
    small = compact(job.model, job.variables, PrunePlan(plan), example=example)
    return *small, list(layers)


def _describe(channels, scores, plan: PrunePlan, rows) -> dict[str, Any]:
    """The cut in JSON form; channels by their ids in the uncut network."""
    return {
        "scores": {layer: np.asarray(s, float).tolist() for layer, s in scores.items()},
        "channels": {layer: list(channels[layer]) for layer in plan.keep},
        "cut": {
            layer: np.delete(channels[layer], keep).tolist()
            for layer, keep in plan.keep.items()
        },
        "plan": [row._asdict() for row in rows],
    }
