"""Twenty kills at random moments of a quickstart-sized run, in every phase.

The figures of the last full run are in docs/reliability.md. Slow: every start pays for
imports and for programs read from the compilation cache.
"""

import json
import random
import time

import pytest

from tests.integration.command import finish, interrupt, remains, rows

QUICKSTART = (
    "--config.train.rounds=8",
    "--config.train.checkpoint_every=2",
    "--config.fine_tune.rounds=5",
    "--config.unlearn.methods=class_pruning,retrain,mask_logit,fine_tune_only",
    "--config.unlearn.retrain_seeds=2",
    "--config.audit.shadow_steps=20",
    "--config.audit.relearn_max_steps=20",
)
KILLS = 20


def events(workdir):
    """How far a run has come: logged rounds, finished units, audit steps, files."""
    units = len(list((workdir / "units").glob("*.json")))
    log = workdir.with_name(workdir.name + ".log")
    steps = {line for line in log.read_text().splitlines() if line[:6] == "audit:"}
    files = sum((workdir / f).exists() for f in ("results.json", "audit.json"))
    return rows(workdir) + units + len(steps) + files


def saving(workdir):
    """Whether a checkpoint is being written at this very moment."""
    return any((workdir / "checkpoints").glob("*/*orbax-checkpoint-tmp*"))


def everything(workdir):
    """`remains`, and the audit and the Markdown tables without their clocks."""
    kept = remains(workdir)
    kept["audit.json"] = (workdir / "audit.json").read_bytes()
    return kept


@pytest.mark.slow
def test_twenty_kills_leave_no_trace(tmp_path):
    """Parameters, metrics, audit and results are those of an undisturbed run."""
    calm = tmp_path / "calm"
    calm.mkdir()
    finish(calm, small=QUICKSTART, timeout=3000)
    total = events(calm)
    storm = tmp_path / "storm"
    storm.mkdir()
    generator = random.Random(0)
    moments = sorted(generator.sample(range(1, total), KILLS - 2))
    moments = [2, *moments, total - 1]
    seen = []
    for number, moment in enumerate(moments):
        delay = generator.uniform(0.0, 1.5)
        in_save = number % 5 == 0

        def now(moment=moment, delay=delay, in_save=in_save):
            if events(storm) < moment:
                return False
            if in_save and saving(storm):
                seen.append("save")
                return True
            if in_save and events(storm) < moment + 3:
                return False
            time.sleep(delay)
            return True

        before = events(storm) if storm.with_name("storm.log").exists() else 0
        try:
            interrupt(storm, now, small=QUICKSTART)
        except AssertionError:
            # The run ended before the moment came: nothing is left to kill.
            break
        seen.append(f"{before}->{events(storm)}")
    finish(storm, small=QUICKSTART, timeout=3000)
    print(json.dumps({"kills": len(seen), "events": total, "seen": seen}))
    assert everything(storm) == everything(calm)
