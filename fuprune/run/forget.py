"""Forgetting in a model that somebody has: `fuprune.forget` and `fuprune forget`.

Both cut the channels of the classes from a trained network, fine-tune if asked, and
measure before and after.
"""

import argparse
import dataclasses
import shlex
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from fuprune import __version__
from fuprune import config as configuration
from fuprune.data.dataset import Dataset
from fuprune.data.federated import FederatedDataset
from fuprune.data.preprocess import Preprocess, to_float
from fuprune.errors import InputError, UsageError, distinct_integers
from fuprune.federated.evaluate import make_evaluator
from fuprune.federated.objective import classification
from fuprune.federated.server import fed_avg
from fuprune.federated.train import fit
from fuprune.files import write_whole
from fuprune.models.adapt import adapt, own_variables
from fuprune.models.brought import bring
from fuprune.options import closest
from fuprune.run import export
from fuprune.run.checkpoint import load
from fuprune.run.data import load_data
from fuprune.run.machine import start
from fuprune.run.models import check_fit
from fuprune.unlearning.class_pruning import class_pruning
from fuprune.unlearning.job import UnlearnResult, tree_bytes

# Up to this share of right answers, a class counts as gone from them.
_GONE = 0.02
_BATCH = 32  # images, for the time of an answer


class Measured(NamedTuple):
    """What a network does and costs."""

    u_accuracy: float  # on the forgotten classes
    r_accuracy: float  # on the others
    parameters: int
    flops: int  # per image, of convolutions and dense layers
    size: int  # bytes of its variables
    milliseconds: float  # for the answers to a batch of 32 images


@dataclasses.dataclass(frozen=True, repr=False)
class Forgotten:
    """A network after forgetting, and what that changed; it prints itself."""

    model: Any
    variables: Any
    names: str  # of the forgotten classes
    before: Measured
    after: Measured
    images: str  # that the accuracies were taken on
    result: UnlearnResult  # of `class_pruning`

    @property
    def verdict(self) -> str:
        """Whether the answers forgot, and what to do next."""
        found, lost = self.after.u_accuracy, self.before.r_accuracy
        lost -= self.after.r_accuracy
        if self.before.u_accuracy <= _GONE:
            return f"Nothing to forget: the network did not answer with {self.names}."
        if found > _GONE:
            return (
                f"Gone? No: still right on {found:.1%} of {self.names}. Try a higher "
                "rate, such as 0.5, or rounds of fine-tuning."
            )
        text = "Gone? From the answers, which is weak evidence alone"
        if lost > 0.05:
            points = f"{100 * lost:.1f} points"
            return f"{text}. The others lost {points}: fine-tune for a few rounds."
        return f"{text}: compare with retrained models (fuprune audit)."

    def __repr__(self) -> str:
        """A table, and the verdict."""
        forms = (
            (f"U: right on {self.names}", "{:.1%}"),
            ("R: right on the others", "{:.1%}"),
            ("Parameters", "{:,}"),
            ("FLOPs per image", "{:,}"),
            ("Size in bytes", "{:,}"),
            (f"Milliseconds for {_BATCH} images", "{:.1f}"),
        )
        fit, totals = self.result.fit, _totals(self.result)
        rounds = 0 if fit is None else int(fit.state.round_number)
        whole, left = totals[0]["channels_before"], totals[-1]["channels_after"]
        lines = [
            f"Forgot {self.names}: {whole - left:,} of {whole:,} channels cut, "
            f"rounds of fine-tuning: {rounds}; on {self.images}",
            f"{'':<30}  {'before':>12}  {'after':>12}",
        ]
        for (name, form), x, y in zip(forms, self.before, self.after, strict=True):
            lines.append(f"{name:<30}  {form.format(x):>12}  {form.format(y):>12}")
        return "\n".join([*lines, self.verdict])


def _totals(result: UnlearnResult) -> list[dict[str, Any]]:
    """The sizes of the whole network before and after each cut."""
    rows = (row for cut in result.notes["cuts"] for row in cut["plan"])
    return [row for row in rows if row["layer"] == "total"]


def forget(
    model: Any,
    variables: Any,
    clients: FederatedDataset,
    classes: int | Sequence[int],
    *,
    test: Dataset | None = None,
    preprocess: Preprocess = to_float,
    class_names: Sequence[str] = (),
    rounds: int = 0,
    learning_rate: float = 0.01,
    batch_size: int = 64,
    key: jax.Array | None = None,
    **options: Any,
) -> Forgotten:
    """Forgets classes in a trained network by cutting their channels.

    Args:
      model: a Flax module, or any other network that `adapt` takes.
      variables: its trained variables.
      clients: their images, from `federate`.
      classes: one, or several, which are cut one after another.
      test: images to measure accuracy on; the clients' own without them.
      preprocess: images as the network takes them, as in its training.
      class_names: for the text of the result.
      rounds: of fine-tuning by FedAvg, without the classes.
      learning_rate: of fine-tuning, for SGD with momentum 0.9.
      batch_size: of fine-tuning.
      key: for all that is drawn; fixed by default.
      **options: of `class_pruning`, such as `rate` and `score`; by default rates are
        tried until the classes are gone, and channels are scored by contrast.

    Returns:
      The slim network in `model` and `variables`, with measurements.
    """
    targets = distinct_integers(classes)
    network, variables = adapt(model), own_variables(model, variables)
    images = jax.ShapeDtypeStruct((_BATCH, *clients.images.shape[1:]), np.float32)
    logits = jax.eval_shape(lambda v, x: network.apply(v, x), variables, images)
    number = logits.shape[-1]

    def fine_tune(model, variables, data, key, objective=None):
        algorithm = fed_avg(
            model,
            client_optimizer=optax.sgd(learning_rate, momentum=0.9),
            local_epochs=1,
            batch_size=batch_size,
            preprocess=preprocess,
            objective=objective or classification(),
        )
        cohort = min(25, data.num_clients)
        state = algorithm.init(variables)
        return fit(algorithm, state, data, key=key, cohort_size=cohort, rounds=rounds)

    result = class_pruning(
        model,
        variables,
        clients,
        targets,
        key=jax.random.key(0) if key is None else key,
        fine_tune=fine_tune,
        num_classes=number,
        preprocess=preprocess,
        **{"score": "contrast", "rate": "auto", **options},
    )
    seen = test or Dataset(np.asarray(clients.images), np.asarray(clients.labels))
    totals = _totals(result)

    images: Any = seen.images[:_BATCH]

    def measure(model, variables, total, when) -> Measured:
        evaluate = make_evaluator(
            model, seen, num_classes=number, preprocess=preprocess
        )
        return Measured(
            (found := evaluate(variables)).accuracy_on(targets),
            found.accuracy_without(targets),
            total[f"parameters_{when}"],
            total[f"flops_{when}"],
            tree_bytes(variables),
            _milliseconds(model, variables, preprocess(None, images)),
        )

    return Forgotten(
        result.model,
        result.variables,
        ", ".join(class_names[c] if class_names else f"class {c}" for c in targets),
        measure(model, variables, totals[0], "before"),
        measure(result.model, result.variables, totals[-1], "after"),
        "the clients' images" if test is None else f"{len(test.labels)} test images",
        result,
    )


def _milliseconds(model, variables, images) -> float:
    """The median time of the network's answers."""
    network, seconds = adapt(model), []
    answer = jax.jit(lambda weights, images: network.apply(weights, images))
    for _ in range(12):
        begun = time.monotonic()
        answer(variables, images).block_until_ready()
        seconds.append(time.monotonic() - begun)
    return 1000 * statistics.median(seconds[2:])  # the first ones compile


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    """Reads the command line of `fuprune forget`."""
    parser = argparse.ArgumentParser(
        prog="fuprune forget",
        description="Forgets classes in a trained model by cutting their channels.",
    )
    add = parser.add_argument
    add("model", help="a saved model, or module:factory with --checkpoint")
    add("--classes", required=True, help="numbers or names, such as 9 or cat,dog")
    add("--data", required=True, help="cifar10, digits, folder:PATH, npz:FILE, ...")
    add("--out", default="slim.safetensors", help="the slim model; a .md goes beside")
    add("--checkpoint", default="", help="weights of module:factory, as safetensors")
    add("--data-dir", default="", help="where the data set lies")
    add("--limit", type=int, default=0, help="first n training images of each class")
    add("--normalise", default="constants", help="constants, federated or central")
    add("--clients", type=int, default=10, help="that the images are dealt to")
    add("--rate", default="auto", help="share of channels to cut, or auto")
    add("--score", default="contrast", help="contrast or tf_idf")
    add("--rounds", type=int, default=0, help="of fine-tuning")
    add("--learning-rate", type=float, default=0.01, help="of fine-tuning")
    add("--seed", type=int, default=0, help="of all that is drawn")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Runs `fuprune forget`; prints what it found and where it is."""
    given = parse(arguments)
    out = Path(given.out)
    if out.suffix != ".safetensors":
        raise UsageError(f"--out is {given.out!r}; allowed: a name.safetensors.")
    try:
        rate = "auto" if given.rate == "auto" else float(given.rate)
    except ValueError:
        raise UsageError(
            f"--rate is {given.rate!r}; allowed: auto, or 0 to 1."
        ) from None
    config = configuration.default()
    values = {
        "data.name": given.data,
        "data.dir": given.data_dir,
        "data.limit": given.limit,
        "data.validation": 0.0,
        "data.normalise": given.normalise,
        "partition.kind": "iid",
        "partition.clients": given.clients,
        "unlearn.classes": 0,
        "seed": given.seed,
    }
    configuration.update(config, values)
    machine = start(devices=1)
    data = load_data(config, machine)
    classes = read_classes(given.classes, data.class_names)
    form: dict[str, Any] = dict(num_classes=data.num_classes)
    form["input_shape"] = data.train.images.shape[1:]
    if ":" not in given.model:
        model, variables = load(given.model, conv=machine.conv)
        check_fit("MODEL", given.model, model, argparse.Namespace(**form))
    elif not given.checkpoint:
        raise UsageError(f"{given.model} is a factory; name its weights: --checkpoint.")
    else:
        model = bring(given.model, **form)
        variables = export.load_weights(given.checkpoint, model)
    found = forget(
        model,
        variables,
        data.data,
        classes,
        test=data.test,
        preprocess=data.prepare,
        class_names=data.class_names,
        score=given.score,
        rate=rate,
        rounds=given.rounds,
        learning_rate=given.learning_rate,
        key=jax.random.key(given.seed),
    )
    export.save_safetensors(out, found.model, found.variables)
    command = shlex.join(["fuprune", "forget", *arguments])
    versions = f"fuprune {__version__}, jax {jax.__version__}, {jax.default_backend()}"
    page = out.with_suffix(".md")
    write_whole(page, f"```\n{found}\n```\n\nCommand: `{command}`\n\n{versions}\n")
    print(f"{found}\nWritten: {out} and {page}")
    return 0


def read_classes(text: str, names: Sequence[str]) -> tuple[int, ...]:
    """Classes by number or name, separated by commas."""
    numbers = {name: number for number, name in enumerate(names)}
    numbers |= {str(number): number for number in range(len(names))}
    found = [numbers.get(part.strip()) for part in text.split(",")]
    if None in found:
        hint = closest(text, names)
        labels = ", ".join(f"{i} {n}".strip() for i, n in enumerate(names))
        raise InputError(
            f"--classes is {text!r}; {hint and hint + ' '}allowed: some of {labels}."
        )
    return tuple(number for number in found if number is not None)
