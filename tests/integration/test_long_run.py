"""Two thousand rounds in one process: memory and handles flat, metrics readable.

A tiny run is watched from outside, through /proc, while it evaluates and saves
checkpoints as real runs do, and weighs its own heap after each save (see `weighing`).
The figures of the last run are in docs/reliability.md.
"""

import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from tests.integration.command import start

ROUNDS = 2000
FIRST_SAVE = 200
SETTLED = 300  # programs are compiled and the first checkpoint is written
TINY = (
    "--config.data.limit=1",
    "--config.data.test_limit=1",
    "--config.partition.kind=iid",
    "--config.partition.clients=2",
    "--config.train.cohort=1",
    "--config.train.algorithm=fed_sgd",
    "--config.train.batch_size=0",
    f"--config.train.rounds={ROUNDS}",
    "--config.train.evaluate_every=50",
    f"--config.train.checkpoint_every={FIRST_SAVE}",
    "--config.phases=pretrain",
    "--config.runtime.conv=xla",
)
RESIDENT_BYTES_A_ROUND = 16_384
# The rounds keep next to nothing; each save of this net loses 65 KB, most of it small
# objects of tensorstore's. Leaked parameters would be a megabyte a round.
HEAP_BYTES_A_ROUND = 768
# The checkpoint library starts these as its saves need them, up to so many for copying
# and so many for files, and an overseer, which ends when it has been idle. Its name,
# ts_pool_overseer, is a character too long for Linux: it bears that of the thread that
# started it, which may be a worker's.
POOL = "ts_pool_worker"
POOL_LIMIT = (os.cpu_count() or 1) + max(4, os.cpu_count() or 1)
OVERSEERS = 1


class Sample(NamedTuple):
    """One look at the running process."""

    rounds: int  # rows in metrics.jsonl
    resident: int  # bytes
    handles: int
    threads: dict[str, str]  # names by id


def look(process_id, rounds):
    """A sample, or None if something ended while it was taken."""
    try:
        with open(f"/proc/{process_id}/status") as file:
            status = dict(line.split(":", 1) for line in file)
        tasks = Path(f"/proc/{process_id}/task")
        return Sample(
            rounds,
            int(status["VmRSS"].split()[0]) * 1024,
            len(os.listdir(f"/proc/{process_id}/fd")),
            {t.name: (t / "comm").read_text().strip() for t in tasks.iterdir()},
        )
    except (OSError, KeyError):  # the process, or one of its threads, has just ended
        return None


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_two_thousand_rounds_take_no_more_memory_or_handles(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONMALLOC", "malloc")  # see `weighing`
    monkeypatch.setenv("JAX_DISABLE_MOST_OPTIMIZATIONS", "0")
    workdir, weights = tmp_path / "run", tmp_path / "weights"
    workdir.mkdir()
    metrics = workdir / "metrics.jsonl"
    samples, seen, readings = [], b"", 0
    weighing = ("tests.integration.weighing", str(weights))
    process = start(workdir, small=TINY, module=weighing)
    try:
        limit = time.monotonic() + 1800
        while process.poll() is None:
            assert time.monotonic() < limit, "the run does not end"
            text = metrics.read_bytes() if metrics.exists() else b""
            assert text.startswith(seen), "rows that had been read were changed"
            for line in text[text[: len(seen)].rfind(b"\n") + 1 :].split(b"\n")[:-1]:
                row = json.loads(line)
                # Round 0 is the model as it came: nothing was trained on.
                assert "phase" in row and ("loss" in row) == (row["round"] > 0)
            readings += text != seen
            seen = text
            samples.append(look(process.pid, text.count(b"\n")))
            time.sleep(0.02)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
    assert process.returncode == 0, (tmp_path / "run.log").read_text()[-3000:]
    assert metrics.read_bytes().startswith(seen)
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    assert [row["round"] for row in rows] == list(range(ROUNDS + 1))

    settled = [s for s in samples if s is not None and SETTLED <= s.rounds < ROUNDS]
    middle = (SETTLED + ROUNDS) // 2
    halves = [
        [s for s in settled if s.rounds < middle],
        [s for s in settled if s.rounds >= middle],
    ]
    assert min(len(half) for half in halves) >= 50, "too few looks to judge by"
    slope = np.polyfit([s.rounds for s in settled], [s.resident for s in settled], 1)[0]
    heap = [
        (int(step), int(size))
        for step, size in map(str.split, weights.read_text().splitlines())
        if int(step) >= SETTLED
    ]
    # A leak shows between any two saves; a buffer that comes or goes, between one pair.
    growth = statistics.median(
        (later - earlier) / (last - first)
        for (first, earlier), (last, later) in itertools.pairwise(heap)
    )
    handles = [statistics.median(s.handles for s in half) for half in halves]
    # All that trains, evaluates and logs runs before the first save.
    own = {
        thread
        for s in samples
        if s is not None and FIRST_SAVE // 2 <= s.rounds < FIRST_SAVE
        for thread in s.threads
    }
    of_saves = [
        [[name for t, name in s.threads.items() if t not in own] for s in half]
        for half in halves
    ]
    pooled = [statistics.median(map(len, half)) for half in of_saves]
    others = [
        statistics.median(len(n) - n.count(POOL) for n in half) for half in of_saves
    ]
    print(
        json.dumps(
            {
                "rounds": ROUNDS,
                "samples": len(settled),
                "readings": readings,
                "resident_mb_first_last": [
                    round(s.resident / 2**20, 1) for s in (settled[0], settled[-1])
                ],
                "resident_bytes_a_round": round(slope),
                "heap_mb": [round(size / 2**20, 2) for _, size in heap],
                "heap_bytes_a_round": round(growth),
                "handles_median": handles,
                "handles_most": [max(s.handles for s in half) for half in halves],
                "own_threads": len(own),
                "threads_of_saves_median": pooled,
                "other_threads_median": others,
            }
        )
    )
    assert len(heap) >= 7
    assert growth < HEAP_BYTES_A_ROUND
    assert slope < RESIDENT_BYTES_A_ROUND
    assert handles[0] == handles[1]
    assert own
    assert all(own <= s.threads.keys() for s in settled), "a thread has ended"
    assert max(others) <= OVERSEERS
    assert max(pooled) <= POOL_LIMIT + OVERSEERS
    assert readings > 100
