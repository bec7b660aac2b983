"""Membership inference with shadow models that are themselves unlearned.

After U-LiRA (Hayes et al., "Inexact Unlearning Needs More Careful Evaluations to Avoid
a False Sense of Privacy", arXiv 2403.01218, 2024) and RULI (Naderloui et al.,
"Rectifying Privacy and Efficacy Measurements in Machine Unlearning", USENIX Security
2025): an image that was trained on and then removed may look different from one that
was never there. The references of the likelihood ratio are
shadow models after the same method has removed the forgotten classes from them: for
each image some that had it before, and some that did not.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fuprune.audit.evidence import FURTHER, HEADLINE
from fuprune.audit.likelihood_ratio import attack_online
from fuprune.audit.measurements import (
    RAW,
    Findings,
    Measurements,
    gather,
    logits_of,
)
from fuprune.audit.options import AuditOptions, Model, UnlearnShadow
from fuprune.audit.outputs import Variables, find_head
from fuprune.audit.roc import find_by_attack
from fuprune.audit.sampling import generator_of
from fuprune.audit.training import batch_rows, init_state, rate, sgd_step
from fuprune.data.dataset import Dataset
from fuprune.errors import InputError


def find_unlearned_shadow(measurements: Measurements, key: jax.Array) -> Findings:
    """U-LiRA: one attack per method that was given, and one for all others.

    Methods that were not given (`ShadowOptions.unlearn`) are stood in for by
    fine-tuning without the classes. Their test asks a weaker question, says so, and is
    not part of the headline.
    """
    methods = measurements.options.shadow.unlearn
    # One attack judges all candidates of a method, such as its seeds.
    groups: dict[UnlearnShadow | None, list[str]] = {None: []}
    for name in measurements.judged:
        if name != RAW:
            groups.setdefault(methods.get(name), []).append(name)
    others, failures = groups.pop(None), []
    found = []

    def attack(name, judged, unlearn, how, family, notes=()) -> None:
        measurements.notify(f"unlearning shadow models, {', '.join(judged) or RAW}")
        answers = unlearned(measurements, unlearn, key)
        # Every attack is turned on the raw model as well: it is the positive control.
        told = {*judged, RAW, *measurements.retrained}
        outputs = {n: one for n, one in measurements.outputs.items() if n in told}
        findings = find_by_attack(
            name,
            attack_online(measurements._replace(outputs=outputs), answers),
            attacker="a likelihood-ratio attacker whose shadow models are unlearned",
            family=family,
            low_rates=True,
            notes=(f"{len(answers)} shadow models, unlearned by {how}", *notes),
        )
        found.append(findings)

    for method, names in groups.items():
        test = f"unlearned_shadow_{names[0]}"
        try:
            attack(test, names, method, "the method itself", HEADLINE)
        except InputError as error:
            # What a method cannot do for a shadow model, it need not have left undone
            # for the model under test: that one is judged, with the stand-in.
            others += names
            failures.append(f"{names[0]} could not be run on shadow models: {error}")
    if others or not found:
        method, how = make_fine_tuning(measurements), "fine-tuning without the class"
        attack("unlearned_shadow", others, method, how, FURTHER, failures)
    return gather(found)


def unlearned(
    measurements: Measurements, unlearn: UnlearnShadow, key: jax.Array
) -> np.ndarray:
    """`[S, F + T', U]` logits of the shadow models after `unlearn`, on their targets.

    Each call is told what its shadow model was trained on.

    Raises:
      InputError: a model answers with NaN, or `unlearn` raises it.
    """
    shadows = measurements.shadows
    assert shadows is not None
    images = shadows.pool.images[shadows.targets]
    found = []
    for i, (module, variables) in enumerate(shadows.models):
        inside = shadows.members[i]
        data = Dataset(shadows.pool.images[inside], shadows.pool.labels[inside])
        model = unlearn(module, variables, jax.random.fold_in(key, i), data)
        found.append(logits_of(measurements, model, images))
        if np.isnan(found[-1]).any():
            raise InputError(
                f"shadow model {i + 1} answers with NaN after it was unlearned"
            )
    return np.stack(found)


def make_fine_tuning(measurements: Measurements) -> UnlearnShadow:
    """Stands in for a method of unlearning classes: fine-tuning without them."""

    def unlearn(module, variables, key, data: Dataset) -> Model:
        rest = ~np.isin(data.labels, measurements.classes)
        kept = Dataset(data.images[rest], data.labels[rest])
        prepare, options = measurements.preprocess, measurements.options
        return module, fine_tune(module, variables, key, kept, prepare, options)

    return unlearn


def fine_tune(
    module: Any,
    variables: Variables,
    key: jax.Array,
    data: Dataset,
    preprocess: Callable[[np.ndarray], Any],
    options: AuditOptions,
    *,
    kept: Any = None,
) -> Variables:
    """Variables after the short fine-tuning of shadow models, on all of `data`.

    How long and how fast is in `options.shadow`; without data nothing is trained.
    `kept` is 1 for parameters that are trained and 0 for those held at zero, in a tree
    like the parameters; None trains all.
    """
    # A shadow model's half of a few images may hold the forgotten classes alone.
    if not len(data.labels):
        return variables
    generator = generator_of(key)
    every = np.arange(len(data.labels))
    steps = options.shadow.fine_tune_steps
    rows = batch_rows(generator, every, steps, options.train_batch_size)
    state = init_state(variables)
    head = find_head(module, variables, preprocess(data.images[rows[0]]))
    for step, batch in enumerate(rows):
        state = sgd_step(
            module,
            head,
            state,
            jax.device_put(preprocess(data.images[batch])),
            jax.device_put(data.labels[batch]),
            jax.random.fold_in(key, step),
            rate(options.shadow.fine_tune_learning_rate),
        )
        if kept is not None:
            # After every step: its gradient and momentum would bring dead weights back.
            params = _product(state.variables["params"], kept)
            state = state._replace(variables={**state.variables, "params": params})
    return state.variables


@jax.jit
def _product(params: Any, kept: Any) -> Any:
    return jax.tree.map(jnp.multiply, params, kept)
