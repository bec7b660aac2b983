"""Builds reports from the files of runs: `python -m fuprune.report runs/a runs/b`.

One run gets its own report made again; several are compared, also with the paper.
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from fuprune.errors import FupruneError
from fuprune.report.compare import join
from fuprune.report.page import build


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code: 2 for what cannot be used."""
    parser = argparse.ArgumentParser(
        prog="python -m fuprune.report",
        description="Make the report of a run again, or set several runs side by side.",
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
            print(build(given.runs[0]))
        else:
            parents = [Path(run).resolve().parent for run in given.runs]
            beside = Path(os.path.commonpath(parents)) / "joined"
            print(join(given.runs, given.output or beside))
    except (FupruneError, OSError) as error:
        print(f"fuprune.report: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
