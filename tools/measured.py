"""Write docs/measured.md, and the figures of README.md, from `bench/results/*.json`.

    python tools/measured.py            write both
    python tools/measured.py --check    exit 1 where they differ from what would be written

`tools/measured.yaml` says which figure comes from which place of which file and which goal it has. Whether a goal is met is computed here.
"""

from __future__ import annotations

import json
import operator
import re
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TABLE = ROOT / "tools" / "measured.yaml"
RESULTS = ROOT / "bench" / "results"
PAGE = ROOT / "docs" / "measured.md"
README = ROOT / "README.md"
BEGIN, END = "<!-- figures: written by tools/measured.py -->\n", "<!-- end of figures -->\n"
COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "within": lambda value, bounds: bool(bounds[0] <= value <= bounds[1]),
}
SIGNS = {"<=": "≤ ", ">=": "≥ ", "==": "", "within": ""}
HEAD = "| figure | value | goal | verdict |\n|---|---|---|---|\n"
ZEROS = re.compile(r"\.0+(?=\D|$)|(\.\d*?[1-9])0+(?=\D|$)")  # trailing zeros of a decimal fraction
VERDICTS = {True: "met", False: "**missed**", None: ""}
PEER, SWEEP = "vllm_priority", "vllm_priority_sweep"  # in the name of a figure against it; in a result: the settings of it that were tried
UNSWEPT = "peer not swept"


def value_at(result: Any, place: str) -> Any:
    """The value at a place such as ``systems/harvester/ttft_ms/p99``; a number steps into a list.

    Raises KeyError or IndexError where the result has no such place.
    """
    for word in place.split("/"):
        result = result[int(word)] if isinstance(result, list) else result[word]
    return result


def shown(value: Any, unit: str | None = None) -> str:
    """A value to read: three significant digits (whole numbers in full) and its unit."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if unit == "%":
        return f"{_digits(value * 100)}%"
    return f"{_digits(value)} {unit}" if unit else _digits(value)


def _digits(number: float) -> str:
    if isinstance(number, int) or abs(number) >= 1000 or number == 0:
        return f"{number:,.0f}"
    return f"{number:#.3g}".rstrip(".")


def goal_of(result: Any, goal: str) -> tuple[str, Any]:
    """Comparison and bound of a goal such as ``<= 1.1`` or ``within 0.9 1.1``; a bound that is not a number is a place in the result."""
    comparison, bound = goal.split(maxsplit=1)
    if comparison == "within":
        return comparison, [yaml.safe_load(word) for word in bound.split()]
    try:
        return comparison, yaml.safe_load(bound) if re.fullmatch(r"[\d.]+|true|false", bound) else value_at(result, bound)
    except (KeyError, IndexError) as error:
        raise KeyError(f"goal {goal!r}: the result has no {bound}") from error


def judged(result: Any, value: Any, goal: str | None) -> bool | None:
    """Whether the value meets its goal; None without a goal."""
    if goal is None:
        return None
    comparison, bound = goal_of(result, goal)
    return COMPARE[comparison](value, bound)


def cells(result: Any, figure: dict[str, Any], whole: Any = None) -> tuple[str, str, str]:
    """Value, goal and verdict of one figure, as the page shows them. An ``optional`` figure that was not measured has no verdict.

    ``whole``: the result that ``result`` is a point of. Nothing is met against a peer of which one setting alone was run.
    """
    if figure.get("optional") and not _has(result, figure["at"]):
        return "not measured", "", ""
    value, unit, goal = value_at(result, figure["at"]), figure.get("unit"), figure.get("goal")
    text = shown(value, unit) + _spread(result, figure.get("spread"))
    if goal is None:
        return text, "", ""
    comparison, bound = goal_of(result, goal)
    bounds = bound if isinstance(bound, list) else [bound]
    said = " to ".join(ZEROS.sub(r"\1", shown(one, unit)) for one in bounds)
    is_met = judged(result, value, goal)
    is_unswept = is_met and PEER in figure["at"] and not (result if whole is None else whole).get(SWEEP)
    return text, SIGNS[comparison] + said, UNSWEPT if is_unswept else VERDICTS[is_met]


def _has(result: Any, place: str) -> bool:
    """Whether the result has a value at ``place``. Older results lack newer figures, and a short run may measure nothing there."""
    try:
        return value_at(result, place) is not None
    except (KeyError, IndexError, TypeError):
        return False


def _spread(result: Any, place: str | None) -> str:
    """The range of rounds or pairs of runs, in brackets."""
    if place is None:
        return ""
    found = value_at(result, place)
    rounds = found if isinstance(found, list) else found.get("rounds") or [found["from"], found["to"]]
    return f" ({_digits(min(rounds))} to {_digits(max(rounds))})"


def origin(result: Any, file: str, model: str = "no model: a scripted engine") -> str:
    """Where a result comes from: machine, model, commit, day, command, and its caveats. ``model`` stands in where the result names none."""
    machine, model = result["machine"], result["model"] or model
    commit, is_dirty = str(result["commit"]).removesuffix("-dirty")[:10], str(result["commit"]).endswith("-dirty")
    marks = ["**short run (`--quick`)**"] * result["arguments"]["quick"] + ["**made with uncommitted changes**"] * is_dirty
    facts = [f"{machine['cpu']}, {machine['cores']} cores", model, f"commit {commit}", result["started_at"][:10], f"`{command(result)}`"]
    return ". ".join([f"[{file}](../bench/results/{file}): {'; '.join(facts)}", *marks]) + ".\n"


def command(result: Any) -> str:
    """The command that made a result."""
    given = result["arguments"]
    words = ["python -m bench", result["scenario"]] + ["--quick"] * given["quick"]
    words += [f"--seconds {given['seconds']:g}"] if given["seconds"] else []
    words += [f"--rate {given['rate']:g}"] if given.get("rate") else []
    words += [f"--share {share:g}" for share in given.get("shares", ())]
    return " ".join(words + [f"--set {name}={value:g}" for name, value in given["set"].items()])


def section(part: dict[str, Any]) -> str:
    """One file's section of the page."""
    result, named = load(part["file"]), {"model": part["model"]} if "model" in part else {}
    text = f"## {part['title']}\n\n{part['about'].strip()}\n\n{origin(result, part['file'], **named)}\n"
    if "picture" in part:
        text += f"![{part['title']}](../bench/results/{part['picture']})\n\n"
    if "figures" in part:
        text += HEAD + "".join(f"| {figure['what']} | {' | '.join(cells(result, figure))} |\n" for figure in part["figures"]) + "\n"
    after: str = part.get("after", "")
    return text + (grid(result, part["grid"]) if "grid" in part else "") + after


def grid(result: Any, table: dict[str, Any]) -> str:
    """A table with a row for each figure and a column for each point of the result. A cell that misses its goal says so."""
    columns = columns_of(result, table)
    text = f"| | {' | '.join(columns)} | goal |\n|---{'|---' * len(columns)}|---|\n"
    for row in table["rows"]:
        found = [cells(value_at(result, place), row, result) for place in columns.values()]
        values = [value + (" **missed**" if verdict == VERDICTS[False] else "") for value, _, verdict in found]
        text += f"| {row['what']} | {' | '.join(values)} | {found[0][1]} |\n"
    return text + "\n"


def columns_of(result: Any, table: dict[str, Any]) -> dict[str, str]:
    """Places by heading. A list of places gets headings from its points, by ``heading``; places that the result lacks are left out."""
    columns: dict[str, str] | list[str] = table["columns"]
    if isinstance(columns, dict):
        return columns
    return {table["heading"].format_map(value_at(result, place)): place for place in columns if _has(result, place)}


def load(file: str) -> Any:
    """A result as it was written."""
    return json.loads((RESULTS / file).read_text(encoding="utf-8"))


def sections(table: dict[str, Any]) -> list[dict[str, Any]]:
    """The sections to show: all but optional ones whose result file is missing."""
    return [part for part in table["sections"] if not part.get("optional") or (RESULTS / part["file"]).exists()]


def page(table: dict[str, Any]) -> str:
    """The whole of docs/measured.md."""
    note = "<!-- Written by tools/measured.py from tools/measured.yaml: edit that, then run it. -->"
    parts = [f"{note}\n# Measured", table["about"], tally(table), *(section(part) for part in sections(table))]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def in_readme(table: dict[str, Any]) -> Iterator[str]:
    """The rows of README's table (figures with a text under ``readme``), then the files they link to."""
    files = []
    for part in sections(table):
        for figure in part.get("figures", []):
            if "readme" in figure:
                value, goal, verdict = cells(load(part["file"]), figure)
                yield f"| {figure['readme']} | [{value}][{part['file']}] | {goal} | {verdict} |\n"
                files.append(part["file"])
    yield "\n" + "".join(f"[{file}]: bench/results/{file}\n" for file in dict.fromkeys(files))


def tally(table: dict[str, Any]) -> str:
    """How many goals are met, in a sentence; each cell of a grid counts."""
    found: list[str] = []
    for part in sections(table):
        result, rows = load(part["file"]), part.get("grid", {})
        found += [cells(result, figure)[2] for figure in part.get("figures", [])]
        found += [cells(value_at(result, place), row, result)[2] for place in _places(result, rows) for row in rows["rows"]]
    met, missed, unswept = (found.count(verdict) for verdict in (VERDICTS[True], VERDICTS[False], UNSWEPT))
    left = f" {unswept} more, against a peer of one setting, are not counted." if unswept else ""
    return f"Of {met + missed} goals {met} are met and {missed} missed.{left}"


def _places(result: Any, table: dict[str, Any]) -> Iterable[str]:
    return columns_of(result, table).values() if table else ()


def readme(table: dict[str, Any], text: str) -> str:
    """README.md with its table of figures up to date. Raises ValueError where the marks of the table are missing."""
    before, _, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"README.md has no lines {BEGIN.strip()!r} and {END.strip()!r}")
    link = "[docs/measured.md](docs/measured.md) has every figure and the command that repeats it."
    return before + BEGIN + HEAD + "".join(in_readme(table)) + f"\n{link}\n{tally(table)}\n" + END + after


def main(arguments: list[str]) -> int:
    table = yaml.safe_load(TABLE.read_text(encoding="utf-8"))
    wanted = {PAGE: page(table), README: readme(table, README.read_text(encoding="utf-8"))}
    if arguments == ["--check"]:
        stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text(encoding="utf-8") != text]
        sys.stderr.write("".join(f"{name} differs: run python tools/measured.py\n" for name in stale))
        return 1 if stale else 0
    for path, text in wanted.items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
