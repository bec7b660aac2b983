"""The audit of a run: which models it judges, against which, and on which images."""

import contextlib
import logging
from collections.abc import Iterator, Mapping

from fuprune.audit import KINDS, AuditData, probe
from fuprune.audit.audit import audit as audit_classes
from fuprune.audit.request_audit import RequestData, audit_request
from fuprune.data.backdoor import TARGET, triggered
from fuprune.files import write_whole
from fuprune.results import MethodOutcome
from fuprune.run import build
from fuprune.run.loop import Experiment, key_for, outcome_of, stop_if_asked
from fuprune.run.shadows import shadow_methods
from fuprune.run.store import AuditOutcome
from fuprune.unlearning.methods import METHODS


def audit(this: Experiment, name: str) -> AuditOutcome:
    """Audit every saved model of this run against the retrained ones."""
    kinds = build.audit_options(this.config).kinds
    wanted = this.classes and (kinds is None or "probe" in kinds)
    # From the start, because it imports for seconds before it can begin.
    with probing_beside() if wanted else contextlib.nullcontext() as begin_probes:
        return _audit(this, name, begin_probes)


@contextlib.contextmanager
def probing_beside() -> Iterator[probe.Begin]:
    """A Python process that fits the probes' classifiers while the audit goes on.

    Fitting many small classifiers holds Python's lock, as tracing networks does, so
    that a thread would gain nothing.
    """
    from joblib.externals import loky

    executor = loky.ProcessPoolExecutor(max_workers=1)
    executor.submit(probe.import_classifiers)

    def begin(tasks: Mapping[str, probe.Task]) -> probe.Wait:
        futures = {n: executor.submit(probe.probe, task) for n, task in tasks.items()}

        def wait() -> dict[str, probe.Probes] | None:
            try:
                return {name: future.result() for name, future in futures.items()}
            # Whatever goes wrong there goes wrong again, and is told, in this process.
            except Exception as error:
                logging.warning("the process of the probes ended: %s", error)
                return None

        return wait

    try:
        yield begin
    finally:
        executor.shutdown(kill_workers=True)


def _audit(
    this: Experiment, name: str, begin_probes: probe.Begin | None
) -> AuditOutcome:
    config = this.config
    prepare = this.federation.prepare
    data = AuditData(
        this.federation.train, this.federation.test, lambda x: prepare(None, x)
    )
    done = [
        unit
        for unit in this.units
        if outcome_of(this, unit.phase, MethodOutcome).row.error is None
    ]
    # Retrained models are references, with every seed they have; of the other methods
    # the first seed is judged, or all.
    retrained = [u for u in done if METHODS[u.method].budget == "training"]
    all_seeds = config.audit.seeds == "all"
    own = [u for u in done if u not in retrained and (u.seed == 0 or all_seeds)]
    candidates = {unit.name: this.load(unit.name) for unit in own}
    candidates |= this.elsewhere.candidates
    references = [this.load(unit.name) for unit in retrained]
    references += this.elsewhere.references
    # 0 takes all of them.
    references = references[: config.audit.retrained or None]
    raw = this.raw
    options = build.audit_options(config)
    if this.classes:
        methods, head = {u.name: u.method for u in own}, build.head_option(*raw)
        unlearn = shadow_methods(this, raw[0], methods, head, options)
        options = options._replace(shadow=options.shadow._replace(unlearn=unlearn))
    steps: list[str] = []
    # Every model, the raw and a random one included, has its outputs taken and is
    # looked at by probes and by relearning; the other kinds are a step each.
    expected = 3 * (len(candidates) + len(references) + 2) + len(KINDS)
    with this.progress.steps(name, expected) as show:

        def on_step(text: str) -> None:
            steps.append(text)
            show(text)
            stop_if_asked(this)

        key = key_for(this, "audit")
        if this.classes:
            report = audit_classes(
                candidates,
                references,
                raw,
                data,
                this.classes,
                key,
                on_step=on_step,
                options=options,
                begin_probes=begin_probes,
            )
        else:
            planted = triggered(data.test) if config.audit.backdoor else None
            images = RequestData(
                this.federation.forgotten, data.test, data.preprocess, planted, TARGET
            )
            report = audit_request(
                candidates,
                references,
                raw,
                images,
                key,
                on_step=on_step,
                options=options,
            )
    if this.store.writes:
        write_whole(this.store.workdir / "audit.json", report.to_json())
    return AuditOutcome(len(steps))
