"""Writes the table of methods.md from the methods' own declarations.

A test fails when the page and the declarations differ.

    python docs/fill_methods.py
"""

import pathlib
import re

from fuprune.unlearning.methods import METHODS

PAGE = pathlib.Path(__file__).resolve().parent / "methods.md"


def main():
    """Rewrite the table in place."""
    PAGE.write_text(filled(PAGE.read_text()))


def filled(text: str) -> str:
    """The page with the table made anew."""
    start, end = "<!-- methods -->", "<!-- end of methods -->"
    made = f"{start}\n{table()}\n{end}"
    return re.sub(f"{start}.*?{end}", lambda _: made, text, flags=re.DOTALL)


def table() -> str:
    """What each method does, serves, uses and is configured by."""
    lines = [
        "| method | what it does | serves | uses forgotten images | fine-tunes |"
        " options |",
        "|---|---|---|---|---|---|",
    ]
    for name, one in METHODS.items():
        does = one.function.__doc__.splitlines()[0].rstrip(".")
        does = f"{does[0].lower()}{does[1:]}"
        uses = "in every round" if one.trains_on_forgotten else "before fine-tuning"
        tunes = "yes" if one.budget == "fine_tune" else "trains"
        sections = ", ".join(f"`{section}.*`" for section in one.sections)
        lines.append(
            f"| `{name}` | {f'**control**: {does}' if one.control else does} |"
            f" {', '.join(one.serves)} | {uses if one.reads_forgotten else 'no'} |"
            f" {tunes if one.fine_tunes else 'no'} | {sections} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
