"""Builds reports from the files of runs: `python -m fuprune.report runs/a runs/b`.

One run gets its own report made again; several are joined into the paper's tables.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fuprune.errors import FupruneError
from fuprune.report.joined_report import join
from fuprune.report.run_report import build


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line.

    Args:
      arguments: What follows the program's name; `None` takes the process's own.

    Returns:
      The exit code: 0, or 2 if something given cannot be used.
    """
    parser = argparse.ArgumentParser(
        prog="python -m fuprune.report",
        description="Make the report of a run again, or join several runs into the "
        "paper's tables with its numbers beside ours.",
    )
    parser.add_argument("runs", nargs="+", metavar="RUN", help="a run's directory")
    parser.add_argument(
        "--output",
        metavar="DIR",
        help="folder for a joined report; by default 'joined' beside the runs, or, for "
        "a single run, the run's own 'report'",
    )
    given = parser.parse_args(arguments)
    try:
        if len(given.runs) == 1 and given.output is None:
            written = build(given.runs[0])
        else:
            written = join(given.runs, given.output or _beside(given.runs))
    except (FupruneError, OSError) as error:
        print(f"fuprune.report: {error}", file=sys.stderr)
        return 2
    print(written)
    return 0


def _beside(runs: Sequence[str]) -> Path:
    parents = [str(Path(run).resolve().parent) for run in runs]
    return Path(os.path.commonpath(parents)) / "joined"


if __name__ == "__main__":
    sys.exit(main())
