"""What the server tells of its progress, and how that is told from Flower's log."""

import json
import logging
from pathlib import Path
from typing import Any

TOLD = "fuprune: "  # begins each of the server's lines
FAILED = f"{TOLD}error: "  # begins the one that says why a run stopped
FINISHED = "finished"  # the last one of a run that did not stop
_LOGGER = logging.getLogger(__name__)


def log_round(folder: Path, record: Any, rounds: int) -> None:
    """Adds a round to `rounds.jsonl` of its unit, and tells it in one line."""
    row = {
        "round": record.round_number,
        **{k: round(float(v), 6) for k, v in record.metrics.items()},
        "rejected": list(record.rejected),
    }
    with open(folder / "rounds.jsonl", "a", encoding="utf-8") as file:
        file.write(json.dumps(row) + "\n")
    scored = record.metrics.get("accuracy")
    _LOGGER.info(
        "%s: round %d of %d, %d clients%s",
        folder.name.replace("_", "-"),
        record.round_number,
        rounds,
        record.metrics["participants"],
        "" if scored is None else f", {scored:.1%} of the test set is right",
    )


def log_messages(workdir: Path, roster: Any) -> None:
    """Adds to `messages.jsonl` what each answer cost its client."""
    with open(workdir / "messages.jsonl", "a", encoding="utf-8") as file:
        for kind, client, seconds in roster.cpu_seconds:
            row = {"kind": kind, "client": client, "cpu_seconds": seconds}
            file.write(json.dumps(row) + "\n")
