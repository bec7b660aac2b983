"""Forgetting in a model that somebody has: a function, and the command around it.

`forget` cuts the channels of the classes from any trained network, at the smallest rate
after which its clients no longer see them, fine-tunes if asked, and measures before and
after. `fuprune forget` loads model and data, calls it, and writes the slim model with a
page about it.
"""

import argparse
import dataclasses
import html
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
from fuprune.run import checkpoint
from fuprune.run.data import Federation, load_data
from fuprune.run.machine import Runtime, start
from fuprune.run.models import check_fit
from fuprune.unlearning.class_pruning import class_pruning
from fuprune.unlearning.protocol import UnlearnResult, tree_bytes

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
    names: tuple[str, ...]  # of the forgotten classes
    before: Measured
    after: Measured
    images: str  # that the accuracies were taken on
    result: UnlearnResult  # of `class_pruning`

    @property
    def cut(self) -> str:
        """What was cut, in words."""
        total = [_total(cut) for cut in self.result.notes["cuts"]]
        before, after = total[0]["channels_before"], total[-1]["channels_after"]
        rounds = 0 if self.result.fit is None else self.result.fit.state.round_number
        tuned = f"rounds of fine-tuning: {int(rounds)}"
        return f"{before - after:,} of {before:,} channels cut, {tuned}"

    @property
    def verdict(self) -> str:
        """Whether the answers forgot, and what to do next."""
        found, lost = self.after.u_accuracy, self.before.r_accuracy
        lost -= self.after.r_accuracy
        names = ", ".join(self.names)
        if self.before.u_accuracy <= _GONE:
            return f"Nothing to forget: the network did not answer with {names}."
        if found > _GONE:
            return (
                f"Gone? No: still right on {found:.1%} of {names}. Try a higher rate, "
                "such as 0.5, or rounds of fine-tuning."
            )
        text = "Gone? From the answers, which is weak evidence alone"
        if lost > 0.05:
            return f"{text}. The others lost {lost:.1%}: fine-tune for a few rounds."
        return f"{text}: compare with retrained models (fuprune audit)."

    def rows(self) -> list[tuple[str, str, str]]:
        """What is measured, before and after, as text."""
        forms = (
            (f"U: right on {', '.join(self.names)}", "u_accuracy", "{:.1%}"),
            ("R: right on the others", "r_accuracy", "{:.1%}"),
            ("Parameters", "parameters", "{:,}"),
            ("FLOPs per image", "flops", "{:,}"),
            ("Size in bytes", "size", "{:,}"),
            (f"Milliseconds for {_BATCH} images", "milliseconds", "{:.1f}"),
        )
        before, after = self.before._asdict(), self.after._asdict()
        return [(x, f.format(before[n]), f.format(after[n])) for x, n, f in forms]

    def __repr__(self) -> str:
        """A table, and the verdict."""
        rows = [("", "before", "after"), *self.rows()]
        wide = max(len(row[0]) for row in rows)
        lines = [f"{a:<{wide}}  {b:>12}  {c:>12}" for a, b, c in rows]
        title = f"Forgot {', '.join(self.names)}: {self.cut}; on {self.images}"
        return "\n".join([title, *lines, self.verdict])

    def _repr_html_(self) -> str:
        rows = [("", "before", "after"), *self.rows()]
        cells = ("".join(f"<td>{html.escape(x)}</td>" for x in row) for row in rows)
        table = f"<table><tr>{'</tr><tr>'.join(cells)}</tr></table>"
        return f"{table}<p>{html.escape(f'{self.cut}. {self.verdict}')}</p>"

    def page(self, command: Sequence[str] = ()) -> str:
        """One page of Markdown on what was done."""
        rows = "\n".join(f"| {a} | {b} | {c} |" for a, b, c in self.rows())
        layers = "\n".join(
            f"| {row['layer']} | {row['channels_before']} | {row['channels_after']} |"
            for cut in self.result.notes["cuts"]
            for row in cut["plan"]
        )
        asked = f"\nCommand: `{shlex.join(command)}`\n" if command else ""
        return (
            f"# Forgotten: {', '.join(self.names)}\n\n{self.verdict}\n\n"
            f"{self.cut.capitalize()}. Accuracy on {self.images}.\n\n"
            f"| | before | after |\n|---|---:|---:|\n{rows}\n\n"
            "| layer | channels before | after |\n|---|---:|---:|\n"
            f"{layers}\n{asked}fuprune {__version__}, jax {jax.__version__}, "
            f"{jax.default_backend()}\n"
        )


def forget(
    model: Any,
    variables: Any,
    clients: FederatedDataset,
    classes: int | Sequence[int],
    *,
    test: Dataset | None = None,
    preprocess: Preprocess = to_float,
    class_names: Sequence[str] = (),
    score: str = "contrast",
    rate: float | str = "auto",
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
      score: of channels; see `class_pruning`.
      rate: share of channels to cut; "auto" tries up to eight.
      rounds: of fine-tuning by FedAvg, without the classes.
      learning_rate: of fine-tuning, for SGD with momentum 0.9.
      batch_size: of fine-tuning.
      key: for all that is drawn; fixed by default.
      **options: further options of `class_pruning`.

    Returns:
      The slim network in `model` and `variables`, with measurements.
    """
    targets = distinct_integers(classes)
    network, variables = adapt(model), own_variables(model, variables)
    key = jax.random.key(0) if key is None else key
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
        key=key,
        fine_tune=fine_tune,
        num_classes=number,
        preprocess=preprocess,
        score=score,
        rate=rate,
        **options,
    )
    held = Dataset(np.asarray(clients.images), np.asarray(clients.labels))
    seen = held if test is None else test
    first, last = (_total(result.notes["cuts"][i]) for i in (0, -1))
    on = (seen, preprocess, targets, number)
    before = _measure(model, variables, *on, first, "before")
    after = _measure(result.model, result.variables, *on, last, "after")
    named = {c: class_names[c] for c in targets if class_names}
    return Forgotten(
        result.model,
        result.variables,
        tuple(_label(c, named.get(c, "")) for c in targets),
        before,
        after,
        "the clients' images" if test is None else f"{len(test.labels)} test images",
        result,
    )


def _label(number: int, name: str) -> str:
    return f"class {number}" if name in ("", str(number)) else name


def _total(cut: dict[str, Any]) -> dict[str, Any]:
    return next(row for row in cut["plan"] if row["layer"] == "total")


def _measure(
    model, variables, seen: Dataset, preprocess, classes, number, total, when: str
) -> Measured:
    evaluate = make_evaluator(model, seen, num_classes=number, preprocess=preprocess)
    found, network = evaluate(variables), adapt(model)
    answer = jax.jit(lambda weights, images: network.apply(weights, images))
    images = preprocess(None, np.asarray(seen.images[:_BATCH]))
    seconds = []
    for _ in range(12):
        begun = time.monotonic()
        answer(variables, images).block_until_ready()
        seconds.append(time.monotonic() - begun)
    return Measured(
        found.accuracy_on(classes),
        found.accuracy_without(classes),
        total[f"parameters_{when}"],
        total[f"flops_{when}"],
        tree_bytes(variables),
        1000 * statistics.median(seconds[2:]),  # the first ones compile
    )


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
    machine = start(devices=1)
    data = _load_data(given, machine)
    classes = read_classes(given.classes, data.class_names)
    model, variables = _load_model(given, data, machine.conv)
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
    checkpoint.export.save_safetensors(out, found.model, found.variables)
    page = out.with_suffix(".md")
    write_whole(page, found.page(["fuprune", "forget", *arguments]))
    print(f"{found}\nWritten: {out} and {page}")
    return 0


def _load_data(given: argparse.Namespace, machine: Runtime) -> Federation:
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
    return load_data(config, machine)


def read_classes(text: str, names: Sequence[str]) -> tuple[int, ...]:
    """Classes by number or name, separated by commas.

    Raises:
      InputError: one is neither; it lists which number is which.
    """
    found = []
    for part in filter(None, map(str.strip, text.split(","))):
        if part.isdecimal() and int(part) < len(names):
            found.append(int(part))
        elif part in names:
            found.append(list(names).index(part))
        else:
            found = []
            break
    if not found:
        hint = closest(text, filter(None, names))
        labels = (f"{i} {n}" if n != str(i) else n for i, n in enumerate(names))
        raise InputError(
            f"--classes is {text!r}; {hint and hint + ' '}allowed: some of "
            f"{', '.join(map(str.strip, labels))}."
        )
    return tuple(found)


def _load_model(
    given: argparse.Namespace, data: Federation, conv: str
) -> tuple[Any, Any]:
    """The network and its variables; a factory's are checked against what it makes."""
    shape, number = data.train.images.shape[1:], data.num_classes
    if ":" not in given.model:
        model, variables = checkpoint.load(given.model, conv=conv)
        wanted = argparse.Namespace(num_classes=number, input_shape=shape)
        check_fit("MODEL", given.model, model, wanted)
        return model, variables
    if not given.checkpoint:
        raise UsageError(f"{given.model} is a factory; name its weights: --checkpoint.")
    model = bring(given.model, num_classes=number, input_shape=shape)
    return model, checkpoint.export.load_weights(given.checkpoint, model)
