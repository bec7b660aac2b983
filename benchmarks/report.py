"""Where results go: a JSON file in results/, and its table in README.md."""

import contextlib
import datetime
import json
import os
import pathlib
import platform
import re

HERE = pathlib.Path(__file__).resolve().parent
PAGE = HERE / "README.md"
RESULTS = HERE / "results"


def write(name: str, report: dict, table: str) -> None:
    """Write `results/NAME.json`, and the table between the page's two marks."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")
    PAGE.write_text(filled(PAGE.read_text(), name, table))


def filled(page: str, name: str, table: str) -> str:
    """The page with `table` between `<!-- name -->` and `<!-- end of name -->`."""
    start, end = f"<!-- {name} -->", f"<!-- end of {name} -->"
    pattern = re.compile(f"{re.escape(start)}.*?{re.escape(end)}", re.DOTALL)
    return pattern.sub(lambda _: f"{start}\n{table}\n{end}", page)


def read(name: str) -> dict:
    """What an earlier run found, or an empty report."""
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def now() -> str:
    """The time of a measurement, as every report says it."""
    return f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC"


def machine() -> dict:
    """The processor, its cores, and how busy it is."""
    model = _cpuinfo("model name") or platform.processor()
    cores = len(os.sched_getaffinity(0))
    return {"cpu": model, "cores": cores, "load": round(os.getloadavg()[0], 1)}


def described(report: dict) -> str:
    """When and on what a report was made."""
    found = report["machine"]
    return (
        f"{report['date']}, {found['cores']} cores of {found['cpu']}, load average"
        f" {found['load']} before the run"
    )


def processor_flags() -> list[str]:
    """The instruction sets of this processor, by Linux's names."""
    return _cpuinfo("flags").split()


def _cpuinfo(field: str) -> str:
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(field):
                return line.split(":", 1)[1].strip()
    return ""
