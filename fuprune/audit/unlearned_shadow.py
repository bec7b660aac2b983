"""Membership inference with shadow models that are themselves unlearned.

U-LiRA (Hayes et al. 2024) and RULI: an image that was trained on and then removed may
look different from one that was never there. The references of the likelihood ratio are
shadow models after the same method has removed the forgotten classes from them: for
each image some that had it before, and some that did not.
"""

from collections.abc import Mapping, Sequence

import jax
import numpy as np

from fuprune.audit.evidence import FURTHER, HEADLINE
from fuprune.audit.likelihood_ratio import online_scores, shadow_confidence
from fuprune.audit.measurements import (
    Findings,
    Measurements,
    Notify,
    Shadows,
    everyone,
)
from fuprune.audit.membership import split_targets, target_confidence
from fuprune.audit.options import AuditOptions, Model, UnlearnShadow
from fuprune.audit.outputs import compute_outputs, find_head
from fuprune.audit.roc import attack_drafts
from fuprune.audit.training import batch_rows, init_state, rate, sgd_step
from fuprune.data.dataset import Dataset


def find_unlearned_shadow(
    measurements: Measurements, options: AuditOptions, key: jax.Array, notify: Notify
) -> Findings:
    """U-LiRA: one attack per method that was given, and one for all others.

    Methods that were not given (`ShadowOptions.unlearn`) are stood in for by
    fine-tuning without the classes. Their test asks a weaker question, says so, and is
    not part of the headline.
    """
    shadows = measurements.shadows
    if shadows is None:
        return Findings([])
    methods = options.shadow.unlearn
    candidates = [name for name in measurements.judged if name != "raw"]
    groups: list[tuple[str, list[str], UnlearnShadow]] = [
        (f"unlearned_shadow_{name}", [name], methods[name])
        for name in candidates
        if name in methods
    ]
    others = [name for name in candidates if name not in methods]
    if others or not groups:
        stand_in = make_fine_tuning(measurements, options)
        groups.append(("unlearned_shadow", others, stand_in))
    tests, curves = [], {}
    for name, judged, unlearn in groups:
        notify(f"unlearning shadow models, {', '.join(judged) or 'raw'}")
        attacked = _attacked(measurements, judged)
        own = name != "unlearned_shadow"
        drafts, found = attack_drafts(
            attacked,
            name,
            _scores(attacked, unlearned(shadows, unlearn, key), options),
            kind="unlearned_shadow",
            attacker="a likelihood-ratio attacker whose shadow models are unlearned",
            family=HEADLINE if own else FURTHER,
            low_rates=True,
            notes=(
                f"{len(shadows.models)} shadow models, unlearned by "
                + ("the method itself" if own else "fine-tuning without the class"),
            ),
        )
        tests += drafts
        curves |= found
    return Findings(tests, {"roc": curves})


def _attacked(measurements: Measurements, candidates: Sequence[str]) -> Measurements:
    names = [*candidates, "raw"]
    return measurements._replace(judged={n: measurements.judged[n] for n in names})


def unlearned(shadows: Shadows, unlearn: UnlearnShadow, key: jax.Array) -> list[Model]:
    """The shadow models after `unlearn`, each told what it was trained on."""
    found = []
    for i, (module, variables) in enumerate(shadows.models):
        inside = shadows.members[i]
        data = Dataset(shadows.pool.images[inside], shadows.pool.labels[inside])
        found.append(unlearn(module, variables, jax.random.fold_in(key, i), data))
    return found


def _scores(
    measurements: Measurements, models: Sequence[Model], options: AuditOptions
) -> Mapping[str, tuple[np.ndarray, np.ndarray]]:
    shadows = measurements.shadows
    assert shadows is not None
    images, labels = (part[shadows.targets] for part in shadows.pool)
    logits = np.stack(
        [
            compute_outputs(
                *model, images, measurements.preprocess, batch_size=options.batch_size
            ).logits
            for model in models
        ]
    )
    references = shadow_confidence(logits, labels)
    members = shadows.members[:, shadows.targets]
    scores = {}
    for name, model in everyone(measurements):
        own = target_confidence(measurements, model)
        ratios = online_scores(own, references, members)
        scores[name] = split_targets(measurements, ratios, own)
    return scores


def make_fine_tuning(
    measurements: Measurements, options: AuditOptions
) -> UnlearnShadow:
    """Stands in for a method of unlearning classes: fine-tuning without them.

    Args:
      measurements: names the classes and how images are preprocessed.
      options: how long and how fast to fine-tune.

    Returns:
      An `UnlearnShadow`.
    """

    def unlearn(module, variables, key, data: Dataset) -> Model:
        rest = np.flatnonzero(~np.isin(data.labels, measurements.classes))
        generator = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        steps = options.shadow.fine_tune_steps
        rows = batch_rows(generator, rest, steps, options.train_batch_size)
        state = init_state(variables)
        head = find_head(
            module, variables, measurements.preprocess(data.images[rows[0]])
        )
        for step, batch in enumerate(rows):
            state = sgd_step(
                module,
                head,
                state,
                jax.numpy.asarray(measurements.preprocess(data.images[batch])),
                jax.numpy.asarray(data.labels[batch]),
                jax.random.fold_in(key, step),
                rate(options.shadow.fine_tune_learning_rate),
            )
        return module, state.variables

    return unlearn
