"""Files by http: a changed file is another source, and what a file holds is told by its name, not by the options of its address."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.errors import SourceError
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


def parquet(text: str) -> bytes:
    file = io.BytesIO()
    pq.write_table(pa.table({"text": [text]}), file)
    return file.getvalue()


@pytest.mark.parametrize("header", ["ETag", "Content-MD5", "Last-Modified"])
@pytest.mark.parametrize("path", ["/docs.jsonl", "/plain/docs.jsonl", "/docs.parquet"])
def test_a_changed_file_is_another_source(site: Site, tmp_path: Path, path: str, header: str) -> None:
    found = []
    for text in ("one", "two"):  # of the same size
        site.files[path] = parquet(text) if path.endswith("parquet") else f'{{"text": "{text}"}}\n'.encode()
        site.headers[path] = {header: f'"{text}"'}
        found.append(read(site.url + path, tmp_path))
        assert read(site.url + path, tmp_path) == found[-1]
    assert [texts for _, texts in found] == [["one"], ["two"]]
    assert found[0][0] != found[1][0]


@pytest.mark.parametrize("path", ["/docs.jsonl", "/plain/docs.jsonl"])
def test_a_file_that_nothing_is_told_of_is_copied_at_each_opening(site: Site, tmp_path: Path, path: str) -> None:
    for text in ("one", "two"):
        site.files[path] = f'{{"text": "{text}"}}\n'.encode()
        assert read(site.url + path, tmp_path)[1] == [text]
    known, _ = read(site.url + path, tmp_path)
    site.files.clear()
    with open_source(site.url + path, rules=RULES, snapshot_dir=tmp_path, fingerprint=known) as source:
        assert source.fingerprint() == known


def test_parquet_that_nothing_is_told_of_stays_the_same_source(site: Site, tmp_path: Path) -> None:
    """It is read in place: a job opens it again and again."""
    site.files["/docs.parquet"] = parquet("one")
    assert read(f"{site.url}/docs.parquet", tmp_path) == read(f"{site.url}/docs.parquet", tmp_path)


def test_parquet_that_changes_while_it_is_read_is_refused(site: Site) -> None:
    site.files["/docs.parquet"], site.headers["/docs.parquet"] = parquet("one"), {"ETag": '"1"'}
    with open_source(f"{site.url}/docs.parquet", rules=RULES) as source:
        site.files["/docs.parquet"], site.headers["/docs.parquet"] = parquet("two"), {"ETag": '"2"'}
        with pytest.raises(SourceError, match="changed while it was read"):
            source.read(source.row_groups()[0], 0, 1)


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
