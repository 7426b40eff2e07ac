"""Every `harvester ...` command in README.md and docs/*.md exists, with the options it is written with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import cast

import pytest
import typer.main

from harvester.cli.main import app

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
PROGRAM = cast(typer.core.TyperGroup, typer.main.get_command(app))  # with the options for shell completion

_PROMPT = re.compile(r"^\s*(?:\$ |> )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?(harvester(?: .*)?)$")
_INLINE = re.compile(r"`(harvester [^`]+)`")
_ENDS = {"|", "||", "&&", ";", "&", ">", ">>", "<", "2>"}


def commands(text: str) -> list[str]:
    """Command lines in code blocks (fenced or indented, continued ones joined) and in backticks within sentences."""
    found: list[str] = []
    is_fenced = False
    for line in text.replace("\\\n", " ").splitlines():
        if line.lstrip().startswith(("```", "~~~")):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            found += [match[1] for match in [_PROMPT.match(line)] if match]
        else:
            found += _INLINE.findall(line)
    return found


def words_of(line: str) -> list[str]:
    """The words of the first command of a line, without comments and the brackets of optional parts."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word in _ENDS:
            break
        words.append(word if " " in word else word.strip("[]").removesuffix("..."))
    return [word for word in words[1:] if word]


def fault(line: str) -> str | None:
    """What is wrong with a command line, or None."""
    parameters = {option: param for param in PROGRAM.params for option in param.opts} | {"--help": None, "-h": None}
    name: str | None = None
    places = 0
    words = iter(words_of(line))
    for word in words:
        option, _, value = word.partition("=")
        if option.startswith("-") and option != "-":
            if option not in parameters:
                return f"{name or 'harvester'} has no option {option}"
            param = parameters[option]
            if param is not None and not getattr(param, "is_flag", False) and not value and next(words, None) is None:
                return f"{option} of {name} lacks its value"
        elif name is None:
            if word not in PROGRAM.commands:
                return f"there is no command {word}"
            name = word
            own = PROGRAM.commands[name].params
            parameters |= {option: param for param in own for option in param.opts if option.startswith("-")}
            places = sum(not param.opts[0].startswith("-") for param in own)
        else:
            places -= 1
            if places < 0:
                return f"{name} takes no further argument {word!r}"
    return None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_command_written_in_a_page_exists(page):
    faults = {line: fault(line) for line in commands(page.read_text(encoding="utf-8"))}
    assert {line: wrong for line, wrong in faults.items() if wrong} == {}


def test_a_readme_that_has_code_shows_a_command():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "```" not in text or commands(text)


PAGE = """
Run `harvester show latest --json` to see; `harvester` alone is the name.

```sh
$ harvester submit docs.parquet \\
    --task summarize --watch   # a comment with 'quotes
HARVESTER_URL=http://h:1 harvester jobs | head
harvest nothing
```

    harvester sql "select 1; select 2 from results('x')"
"""


def test_commands_are_found_in_fences_indented_blocks_and_sentences():
    assert commands(PAGE) == [
        "harvester show latest --json",
        "harvester submit docs.parquet      --task summarize --watch   # a comment with 'quotes",
        "harvester jobs | head",
        "harvester sql \"select 1; select 2 from results('x')\"",
    ]


@pytest.mark.parametrize("line", commands(PAGE))
def test_a_right_command_has_no_fault(line):
    assert fault(line) is None


WRONG = {
    "harvester sumbit docs.parquet": "there is no command sumbit",
    "harvester submit docs.parquet --wach": "submit has no option --wach",
    "harvester submit docs.parquet --task": "--task of submit lacks its value",
    "harvester cancel a b": "cancel takes no further argument 'b'",
    "harvester --port 1 serve": "harvester has no option --port",
    "harvester results JOB [-o FILE] [--fromat csv]": "results has no option --fromat",
}


@pytest.mark.parametrize(("line", "message"), WRONG.items())
def test_a_wrong_command_is_found(line, message):
    assert fault(line) == message
