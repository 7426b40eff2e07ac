"""Files by http: what a file holds is told by its name, not by the options of its address."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pytest

from connectors.open import open_source
from connectors.paths.rules import SourceRules
from tests.web_site import Site, web_site

RULES = SourceRules(hosts=("127.0.0.1",))


@pytest.fixture
def site() -> Iterator[Site]:
    with web_site() as site:
        yield site


def read(uri: str, snapshots: Path) -> tuple[str, list[object]]:
    """Fingerprint and texts."""
    with open_source(uri, rules=RULES, snapshot_dir=snapshots) as source:
        return source.fingerprint(), source.read(source.row_groups()[0], 0, source.row_count)["text"].to_pylist()


SIGNED = "?X-Amz-Credential=a/20260101/eu&X-Amz-Signature=abc"


@pytest.mark.parametrize(
    ("path", "content"),
    [
        ("/mails.jsonl.gz", gzip.compress(b'{"text": "a"}\n')),
        ("/MAILS.JSONL.GZ", gzip.compress(b'{"text": "a"}\n')),
        ("/mails.tsv.gz", gzip.compress(b"text\tn,m\na\t1\n")),
        ("/mails.csv", b"text\na\n"),
    ],
    ids=["gzip", "upper case", "tabs", "plain"],
)
@pytest.mark.parametrize("options", ["", SIGNED, "?name=x.gz"], ids=["none", "signed", "another name"])
def test_the_name_alone_tells_what_a_file_holds(site: Site, tmp_path: Path, path: str, content: bytes, options: str) -> None:
    site.files[path + options] = content
    assert read(f"{site.url}{path}{options}", tmp_path)[1] == ["a"]
