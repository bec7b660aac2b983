"""The field's methods side by side: one raw model, one budget, one audit.

Paper: not in it. Every method has the options of its own paper, the same raw model, the
  same participants and the same fine-tuning: a `tenth` or a `fiftieth` of retraining's
  rounds. `clients` asks for client 3 instead, by the methods that serve clients, and
  `cifar100` is the tenth on CIFAR-100, class 99.
Command: python -m fuprune.main --config configs/leaderboard.py:tenth
    --workdir=results/leaderboard_tenth_class1 --config.unlearn.classes=1
    --config.model.load=results/cifar10_resnet20_raw/models/raw.safetensors
    --config.audit.reference=RUNS
  with classes 1, 4 and 7. RUNS are workdirs with retrained models for that class;
  without them, add retrain to unlearn.methods. `python docs/fill_results.py` writes
  docs/leaderboard.md from all runs of that name under results/.
Cost: per class 70,000 images for each of about 20 methods and three seeds (a tenth), or
  14,000 (a fiftieth), and the audit of each.
Expected: docs/leaderboard.md says what came out.
"""

from fuprune.config import load_config

SHARES = {"tenth": 10, "fiftieth": 50, "clients": 10, "cifar100": 10}
ON_CLIENTS = "not,ssd,delete,scrub,bad_teacher,fed_osd,fed_quit,ascent,regrow"
ON_CLASSES = (
    "class_pruning,not,unsir,damp,ssd,delete,scrub,salun,bad_teacher,relabel,ascent,"
    "fisher,influence,regrow,retrain_short"
)


def get_config(part: str = "tenth"):
    """Returns the setting of one part of the table."""
    data = "cifar100" if part == "cifar100" else "cifar10"
    _, config = load_config(f"{data}_resnet_cpu:20")
    config.unlearn.methods = f"{ON_CLASSES},fine_tune_only"
    config.unlearn.classes = 99 if part == "cifar100" else 1
    if part == "clients":
        config.unlearn.classes = ""
        config.unlearn.clients = 3
        config.unlearn.methods = f"{ON_CLIENTS},fine_tune_only"
    config.fine_tune.rounds = config.train.rounds // SHARES[part]
    config.fine_tune.seeds = 3
    return config
