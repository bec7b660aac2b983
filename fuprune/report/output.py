"""Writes a report's files into one folder and nowhere else."""

import re
from collections.abc import Mapping
from pathlib import Path

from fuprune.errors import InputError
from fuprune.files import write_whole

_FILE_NAME = re.compile(r"[a-z0-9][a-z0-9_]*\.(html|md|csv)")


def report_folder(workdir: Path) -> Path:
    """Makes `workdir/report`.

    Raises:
      InputError: `report` is a link out of the run, or is not a folder.
    """
    folder = workdir.resolve() / "report"
    if folder.resolve() != folder:
        raise InputError(
            f"{str(folder)!r} is a link to {str(folder.resolve())!r}, outside the run; "
            "remove the link."
        )
    return make_folder(folder)


def make_folder(folder: Path) -> Path:
    """Makes a folder for the files of a report and returns it with links resolved.

    Raises:
      InputError: a file is in its place.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError) as error:
        raise InputError(
            f"{str(folder)!r} is not a folder; remove it or choose another place."
        ) from error
    return folder.resolve()


def write_files(folder: Path, contents: Mapping[str, str]) -> None:
    """Writes files whole or not at all.

    Raises:
      InputError: a name could lead out of the folder.
    """
    for name, content in contents.items():
        if not _FILE_NAME.fullmatch(name):
            raise InputError(
                f"{name!r} is not a report file name; use letters, digits and '_' with "
                ".html, .md or .csv."
            )
        write_whole(folder / name, content)
