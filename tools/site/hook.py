"""MkDocs' hook: adds the reference, and the files outside `docs` that pages link to; mends the links to both."""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from tools.site.reference import PAGES  # noqa: E402

OUTSIDE = "repository/"
_LINK = re.compile(r"(?<=\]\()([^)\s#]+)|(?<=\]: )([^\s#]+)")


def origin(uri: str) -> str:
    """Path in the repository of a page of the site."""
    return uri.removeprefix(OUTSIDE) if uri.startswith(OUTSIDE) else f"docs/{uri}"


def target(page: str, link: str) -> str | None:
    """URI in the site of what ``link`` on a page means; None for a link to elsewhere or to nothing."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(origin(page)), link))
    generated = path.startswith("docs/reference/")
    if not generated and (path.startswith("..") or not (ROOT / path).exists()):
        return None
    uri = path.removeprefix("docs/") if path.startswith("docs/") else OUTSIDE + path
    return f"{uri}/index.md" if (ROOT / path).is_dir() else uri


def links(text: str) -> list[str]:
    return [inline or reference for inline, reference in _LINK.findall(text)]


def listing(folder: Path) -> str:
    """A page that lists the files of a folder, each with its title where it has one."""
    lines = [f"# {folder.relative_to(ROOT)}", ""]
    for path in sorted(folder.iterdir()):
        if path.is_file() and not path.name.startswith("."):
            first = path.read_text(encoding="utf-8").splitlines()[0] if path.suffix == ".md" else ""
            lines.append(f"- [{first.removeprefix('# ') or path.name}]({path.name})")
    return "\n".join(lines) + "\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    for name, write in PAGES.items():
        files.append(File.generated(config, f"reference/{name}.md", content=write()))
    files.append(File.generated(config, "design/index.md", content=listing(ROOT / "docs" / "design")))
    open_pages = [file for file in files.documentation_pages() if not file.src_uri.startswith("reference/")]
    while open_pages:
        page = open_pages.pop()
        for link in links(page.content_string):
            uri = target(page.src_uri, link)
            if uri is None or files.get_file_from_path(uri) is not None:
                continue
            added = _added(config, uri)
            if added is not None:
                files.append(added)
                if added.is_documentation_page():
                    open_pages.append(added)
    return files


def _added(config: MkDocsConfig, uri: str) -> File | None:
    path = ROOT / origin(uri)
    if path.name == "index.md" and not path.exists() and path.parent.is_dir():
        return File.generated(config, uri, content=listing(path.parent))
    return File.generated(config, uri, content=path.read_bytes()) if path.is_file() else None


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    here = page.file.src_uri

    def mended(match: re.Match[str]) -> str:
        uri = target(here, match[0])
        return match[0] if uri is None else posixpath.relpath(uri, posixpath.dirname(here) or ".")

    return _LINK.sub(mended, markdown)
