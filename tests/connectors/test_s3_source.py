"""Every kind of file on S3, against a server on this machine that speaks S3."""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from connectors.open import open_source
from harvester.errors import SourceError
from tests.s3_server import s3_server


@pytest.fixture(scope="module")
def options() -> Iterator[str]:
    """The query string that makes an address lead to the server."""
    with s3_server() as server:
        yield server.options


@pytest.fixture(scope="module")
def bucket(options: str) -> str:
    """A bucket with `docs/year=.../part 0.parquet`, a row group every 40 rows."""
    files, _ = fs.FileSystem.from_uri(f"s3://shop{options}&allow_bucket_creation=true")
    files.create_dir("shop")
    for year in (2023, 2024):
        with files.open_output_stream(f"shop/docs/year={year}/part 0.parquet") as file:
            pq.write_table(pa.table({"id": list(range(100))}), file, row_group_size=40)
    return "s3://shop"


@pytest.mark.parametrize(
    ("path", "rows"),
    [("/docs", 200), ("/docs/", 200), ("/docs/year=2024/part 0.parquet", 100), ("/docs/*/part ?.parquet", 200), ("", 200)],
    ids=["folder", "slash", "file", "glob", "bucket"],
)
def test_parquet_on_s3_is_read_by_row_group(bucket: str, options: str, path: str, rows: int) -> None:
    with open_source(f"{bucket}{path}{options}") as source:
        assert source.row_count == rows
        group = source.row_groups()[1]
        assert (group.row_start, group.row_count) == (40, 40)
        assert source.read(group, 30, 10, ["id"])["id"].to_pylist() == list(range(70, 80))
        assert source.read(group, 0, 2, ["id"])["id"].to_pylist() == [40, 41]


def test_the_fingerprint_on_s3_is_stable_and_changes_with_the_content(bucket: str, options: str) -> None:
    uri = f"{bucket}/fresh/x.parquet{options}"
    files, _ = fs.FileSystem.from_uri(f"{bucket}{options}")
    found = []
    for values in ([1], [1, 2]):
        with files.open_output_stream("shop/fresh/x.parquet") as file:
            pq.write_table(pa.table({"id": values}), file)
        with open_source(uri) as source, open_source(uri) as again:
            assert source.fingerprint() == again.fingerprint()
            found.append(source.fingerprint())
    assert found[0] != found[1]


@pytest.mark.parametrize("path", ["/gone/x.parquet", "/gone/*.parquet", "-other/x.parquet"], ids=["key", "glob", "bucket"])
def test_what_is_not_on_s3_is_one_clear_error(bucket: str, options: str, path: str) -> None:
    with pytest.raises(SourceError, match=r"does not exist|matches no file"):
        open_source(f"{bucket}{path}{options}")


FILES = {
    "jsonl": ("x.jsonl", b'{"id": 1}\n{"id": 2}\n'),
    "gzip": ("x.jsonl.gz", gzip.compress(b'{"id": 1}\n{"id": 2}\n')),
    "csv": ("x.csv", b"id\n1\n2\n"),
}


@pytest.mark.parametrize(("name", "content"), FILES.values(), ids=FILES.keys())
def test_rows_on_s3_are_copied_once_and_the_origin_may_go(bucket: str, options: str, tmp_path: Path, name: str, content: bytes) -> None:
    files, _ = fs.FileSystem.from_uri(f"{bucket}{options}")
    with files.open_output_stream(f"shop/rows/{name}", compression=None) as file:
        file.write(content)
    uri = f"{bucket}/rows/{name}{options}"
    with open_source(uri, snapshot_dir=tmp_path) as source:
        known = source.fingerprint()
        assert source.read(source.row_groups()[0], 0, 2).to_pydict() == {"id": [1, 2]}
    files.delete_file(f"shop/rows/{name}")
    with open_source(uri, snapshot_dir=tmp_path, fingerprint=known) as source:
        assert source.row_count == 2


def test_text_files_on_s3_are_rows(bucket: str, options: str) -> None:
    files, _ = fs.FileSystem.from_uri(f"{bucket}{options}")
    for name in ("a.md", "sub/b.md"):
        with files.open_output_stream(f"shop/texts/{name}") as file:
            file.write(name.encode())
    with open_source(f"{bucket}/texts{options}") as source:
        assert source.read(source.row_groups()[0], 0, 2).to_pydict() == {"path": ["a.md", "sub/b.md"], "text": ["a.md", "sub/b.md"]}
