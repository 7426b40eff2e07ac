"""README.md is short enough to read, and every path that a page mentions exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.site import reference

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
PAGES = [README, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", ROOT / "bench" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_LINES, MAX_COLUMNS = 120, 120

_LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)
_MENTIONED = re.compile(r"(?<![\w/.:-])(?:bench|configs|connectors|docs|examples|harvester|jobs|requirements|tests|tools)/[\w./-]*\w")


def links(text: str) -> list[str]:
    """Links to files, without their anchors; not those to other sites."""
    found = [inline or reference for inline, reference in _LINK.findall(text)]
    return [link.partition("#")[0] for link in found if "://" not in link and not link.startswith("#")]


def mentioned(text: str) -> list[str]:
    """Paths of this repository that a text names, in a link or not."""
    return _MENTIONED.findall(text)


def is_written(page: Path, link: str) -> bool:
    """A page of the reference, which the site's builder writes."""
    return (page.parent / link).resolve() in {ROOT / "docs" / "reference" / f"{name}.md" for name in reference.PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_to_a_file(page: Path) -> None:
    assert [
        link for link in links(page.read_text(encoding="utf-8")) if not (page.parent / link).exists() and not is_written(page, link)
    ] == []


def test_every_path_that_the_readme_mentions_exists() -> None:
    paths = mentioned(README.read_text(encoding="utf-8"))
    assert "examples/docs_speeches.parquet" in paths
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_the_readme_is_read_in_one_go() -> None:
    lines = README.read_text(encoding="utf-8").splitlines()
    assert len(lines) < MAX_LINES
    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


@pytest.mark.parametrize("target", ["demo", "test"])
def test_the_readme_names_a_target_that_make_has(target: str) -> None:
    assert f"    make {target}" in README.read_text(encoding="utf-8")
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)


def test_links_and_paths_are_found() -> None:
    text = "See [a](docs/a.md#part), [b](https://x.y/z), ![c](images/c.png) and `jobs/tasks/load.py`.\n[d.json]: bench/results/d.json\n"
    assert links(text) == ["docs/a.md", "images/c.png", "bench/results/d.json"]
    assert mentioned(text) == ["docs/a.md", "jobs/tasks/load.py", "bench/results/d.json"]


def test_every_module_that_a_page_names_exists() -> None:
    """By its file name alone: a module may move, and a page need not follow."""
    modules = {path.name for path in ROOT.rglob("*.py") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)}
    named = {page.name: set(re.findall(r"`(?:[\w.]+/)*(\w+\.py)`", page.read_text(encoding="utf-8"))) for page in PAGES}
    assert any(named.values())
    assert {page: missing for page, names in named.items() if (missing := names - modules)} == {}
