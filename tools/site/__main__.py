"""Build the site into `build/site` and check that every link and file of its pages is there, and that no page loads from elsewhere."""

from __future__ import annotations

import logging
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mkdocs.commands.build import build
from mkdocs.config import load_config

CONFIG = Path(__file__).with_name("mkdocs.yml")


class References(HTMLParser):
    """``links`` of a page, and what it ``loads``."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        elif tag == "link" and given.get("href") and given.get("rel") in ("stylesheet", "icon", "preconnect"):
            self.loads.append(str(given["href"]))
        elif tag in ("script", "img", "iframe") and given.get("src"):
            self.loads.append(str(given["src"]))


def faults(site: Path) -> list[str]:
    """A line for each link to nothing, and each load from another host."""
    found = []
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":  # its addresses begin at the root of a server
            continue
        parsed = References()
        parsed.feed(page.read_text(encoding="utf-8"))
        for link in parsed.links + parsed.loads:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                if link in parsed.loads:
                    found.append(f"{page.relative_to(site)} loads {link}")
            elif parts.path and not (page.parent / unquote(parts.path)).exists():
                found.append(f"{page.relative_to(site)} links to {link}, which is not there")
    return found


def main() -> int:
    logging.basicConfig(level=logging.WARNING, format="%(message)s")  # MkDocs says by its log what it refuses
    config = load_config(str(CONFIG))
    build(config)
    wrong = faults(Path(config.site_dir))
    print(*wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
