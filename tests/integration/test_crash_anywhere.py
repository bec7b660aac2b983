"""A dozen kills -9 of a quickstart-sized run, in every phase and in the midst of saves.

Each start dies inside a call that is chosen by phase, after a random part of a second
(see `dying`), so that no kill misses. Slow: every start pays for imports and for
programs read from the compilation cache.
"""

import random
import signal

import pytest

from tests.integration.command import finish, remains, start

QUICKSTART = (
    "--config.train.rounds=6",
    "--config.train.checkpoint_every=2",
    "--config.fine_tune.rounds=4",
    "--config.unlearn.methods=class_pruning,retrain",
    "--config.unlearn.retrain_seeds=2",
    "--config.audit.shadows=2",
    "--config.audit.shadow_steps=20",
)
ROUND = "fuprune.run.store:append_row"  # called twice a round: metrics, timings
SAVE = "orbax.checkpoint:CheckpointManager.save"
COMMIT = "orbax.checkpoint:StandardCheckpointHandler.finalize"
CAPTURE = "fuprune.unlearning.class_pruning:collect"
SURGERY = "fuprune.unlearning.class_pruning:compact"
MODEL = "fuprune.run.checkpoint:save_model"
AUDIT = "fuprune.run.steps:audit_classes"
REPORT = "fuprune.report:build"
# (phase, the call to die in, which call of it, longest delay in seconds), in an order
# that a run goes through: each start continues where the one before was killed.
KILLS = (
    ("training", ROUND, 1, 0.0),
    ("training", ROUND, 2, 0.0),
    ("save", SAVE, 1, 0.2),
    ("save", COMMIT, 1, 0.0),
    ("training", ROUND, 1, 0.0),
    ("save", MODEL, 1, 0.01),
    ("capture", CAPTURE, 1, 2.0),
    ("surgery", SURGERY, 1, 0.0),
    ("fine-tune", ROUND, 1, 0.0),
    ("save", SAVE, 1, 0.2),
    ("save", MODEL, 2, 0.01),
    ("audit", AUDIT, 1, 10.0),
    ("report", REPORT, 1, 0.5),
)


def everything(workdir):
    """`remains`, and the audit and the Markdown tables without their clocks."""
    kept = remains(workdir)
    kept["audit.json"] = (workdir / "audit.json").read_bytes()
    for path in sorted((workdir / "report").glob("*.md")):
        if "second" not in path.read_text().lower():
            kept[path.name] = path.read_bytes()
    return kept


@pytest.mark.slow
def test_a_dozen_kills_leave_no_trace(tmp_path):
    """Parameters, metrics, audit and tables are those of an undisturbed run."""
    calm, storm = tmp_path / "calm", tmp_path / "storm"
    calm.mkdir()
    storm.mkdir()
    finish(calm, small=QUICKSTART, timeout=3000)
    generator = random.Random(0)
    for phase, call, number, longest in KILLS:
        delay = generator.uniform(0.0, longest)
        dying = ("tests.integration.dying", call, str(number), f"{delay:.3f}")
        code = start(storm, small=QUICKSTART, module=dying).wait(1500)
        log = (tmp_path / "storm.log").read_text()
        assert code == -signal.SIGKILL, (phase, call, log[-3000:])
    finish(storm, small=QUICKSTART, timeout=3000)
    left, expected = everything(storm), everything(calm)
    assert left.keys() == expected.keys()
    assert [name for name in expected if left[name] != expected[name]] == []
