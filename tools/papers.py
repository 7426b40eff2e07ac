"""Write docs/papers.md from `bench/results/papers.json`: what the papers say, what the simulation gives, why they differ.

    python -m tools.papers            write it
    python -m tools.papers --check    exit 1 where it differs from what would be written

`tools/papers.yaml` has the papers' words and the reasons. Figures are read from the result: ``{place}`` in a text, or ``{place|unit}``.
"""

from __future__ import annotations

import re
import sys
from typing import Any

import yaml

from tools.measured import HEAD, ROOT, cells, load, origin, shown, value_at

TABLE = ROOT / "tools" / "papers.yaml"
PAGE = ROOT / "docs" / "papers.md"
FILE = "papers.json"
FIGURE = re.compile(r"\{([^}|]+)(?:\|([^}]+))?\}")
COLUMNS = "| figure | the paper says | we get | why they differ |\n|---|---|---|---|\n"


def filled(result: Any, text: str) -> str:
    """The text with its figures, each paragraph on one line. Raises KeyError for a place that the result lacks."""
    flat = "\n\n".join(" ".join(part.split()) for part in text.strip().split("\n\n"))
    return FIGURE.sub(lambda found: shown(value_at(result, found[1]), found[2]), flat)


def compared(result: Any, rows: list[dict[str, str]]) -> str:
    """One line for each claim of a paper."""
    lines = (
        f"| {row['figure']} | {filled(result, row['says'])} | {filled(result, row['get'])} | {filled(result, row['why'])} |\n"
        for row in rows
    )
    return COLUMNS + "".join(lines) + "\n"


def grid(result: Any, table: dict[str, Any]) -> str:
    """A row for each system and a column for each place, where ``{}`` stands for the system's name. A cell is empty if it was not run."""
    columns: dict[str, str] = table["columns"]
    text = f"**{table['title']}**\n\n| | {' | '.join(columns)} |\n|---{'|---' * len(columns)}|\n"
    for name, label in table["rows"].items():
        found = (_cell(result, place.replace("{}", name), table.get("unit")) for place in columns.values())
        text += f"| {label} | {' | '.join(found)} |\n"
    return text + "\n"


def _cell(result: Any, place: str, unit: str | None) -> str:
    try:
        value = value_at(result, place)
    except KeyError:
        return ""
    return "more" if value is None else shown(value, unit)


def section(result: Any, part: dict[str, Any]) -> str:
    """One paper."""
    text = f"## {part['title']}\n\n{filled(result, part['about'])}\n\n"
    text += compared(result, part["compared"]) if "compared" in part else ""
    return text + "".join(grid(result, table) for table in part.get("grids", []))


def page(table: dict[str, Any]) -> str:
    """The whole of docs/papers.md."""
    result = load(FILE)
    note = "<!-- Written by tools/papers.py from tools/papers.yaml: edit that, then run python -m tools.papers. -->"
    goals = HEAD + "".join(f"| {goal['what']} | {' | '.join(cells(result, goal))} |\n" for goal in table["goals"])
    parts = [
        f"{note}\n# The papers' figures, simulated",
        filled(result, table["about"]),
        origin(result, FILE),
        goals,
        filled(result, table["missed"]),
    ]
    return "\n\n".join(part.strip() for part in (*parts, *(section(result, one) for one in table["papers"]))) + "\n"


def main(arguments: list[str]) -> int:
    wanted = page(yaml.safe_load(TABLE.read_text(encoding="utf-8")))
    if arguments == ["--check"]:
        stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != wanted
        sys.stderr.write("papers.md differs: run python -m tools.papers\n" if stale else "")
        return int(stale)
    PAGE.write_text(wanted, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
