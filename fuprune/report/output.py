"""Writes a report's files into one folder and nowhere else."""

from collections.abc import Iterable
from pathlib import Path

from fuprune.errors import InputError
from fuprune.files import write_whole
from fuprune.report import table_forms
from fuprune.report.table_forms import Table


def write_report(
    folder: Path, html: str, heading: Iterable[str], tables: Iterable[Table]
) -> Path:
    """Writes `report.html`, `report.md` and one CSV per table, each as a whole.

    `heading` is the lines of Markdown before the tables. Returns `report.html`'s path.

    Raises:
      InputError: a file is in the folder's place.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"{str(folder)!r} is not a folder; remove it or choose another place."
        ) from error
    folder, tables = folder.resolve(), list(tables)
    parts = [*heading, "", *map(table_forms.to_markdown, tables)]
    write_whole(folder / "report.md", "\n".join(parts))
    for table in tables:
        write_whole(folder / f"{table.name}.csv", table_forms.to_csv(table))
    write_whole(folder / "report.html", html)
    return folder / "report.html"
