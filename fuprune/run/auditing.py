"""The audit of a run: which models it judges, against which, and on which images."""

from fuprune.audit import AuditData, RequestData
from fuprune.audit.audit import audit as audit_classes
from fuprune.audit.audit import audit_request
from fuprune.audit.backdoor import TARGET, triggered
from fuprune.files import write_whole
from fuprune.results import RunRecord
from fuprune.run.loop import Experiment, key_for, row_of, stop_if_asked
from fuprune.unlearning.methods import METHODS


def audit(this: Experiment) -> RunRecord:
    """Audit every saved model of this run against the retrained ones, in audit.json."""
    config, federation = this.config, this.federation
    data = AuditData(
        federation.train, federation.test, lambda x: federation.prepare(None, x)
    )
    done = [unit for unit in this.units if row_of(this, unit).error is None]
    # Retrained models are references; the others are judged, one seed or all.
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
    # Every model has its outputs taken and is taught again; kinds are a step each.
    expected = 2 * (len(candidates) + len(references) + 1) + len(config.audit.kinds)
    with this.progress.steps("audit", expected) as show:

        def on_step(text: str) -> None:
            show(text)
            stop_if_asked(this)

        key = key_for(this, "audit")
        asked = {"options": config.audit, "on_step": on_step}
        if this.classes:
            report = audit_classes(
                candidates, references, raw, data, this.classes, key, **asked
            )
        else:
            planted = triggered(data.test) if config.audit.backdoor else None
            images = RequestData(
                federation.forgotten, data.test, data.preprocess, planted, TARGET
            )
            report = audit_request(candidates, references, raw, images, key, **asked)
    if this.store.writes:
        write_whole(this.store.workdir / "audit.json", report.to_json())
    return RunRecord()
