"""Tables in a bucket, against a server on this machine that speaks S3: what the address says reaches each format's own library."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import lance
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from pyarrow import fs
from pyiceberg.catalog.memory import InMemoryCatalog

from connectors.errors import SourceError
from connectors.open import open_source
from connectors.paths.rules import SourceRules
from tests.s3_server import s3_server
from tools.s3 import CREDENTIALS, S3

DOCS = pa.table({"text": ["a", "b"]})


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    """With the bucket `shop`."""
    with s3_server() as server:
        server.bucket("shop")
        yield server


def store_delta(server: S3, folder: Path, key: str) -> None:
    write_deltalake(folder / "docs", DOCS)
    send(server, folder / "docs", key)


def store_lance(server: S3, folder: Path, key: str) -> None:
    lance.write_dataset(DOCS, folder / "docs")
    send(server, folder / "docs", key)


def store_iceberg(server: S3, folder: Path, key: str, **properties: str) -> None:
    """In the folder `n/docs` of the key's, which must be named so."""
    place = {"s3.endpoint": f"http://{server.host}:{server.port}", "s3.region": "us-east-1"}
    catalog = InMemoryCatalog("test", warehouse=f"s3://{key.removesuffix('/n/docs')}", **place)
    catalog.create_namespace("n")
    catalog.create_table("n.docs", DOCS.schema, properties=properties).append(DOCS)


def send(server: S3, folder: Path, key: str) -> None:
    files, _ = fs.FileSystem.from_uri(f"s3://shop{server.options}")
    fs.copy_files(str(folder), key, destination_filesystem=files)


def texts(uri: str, rules: SourceRules | None = None) -> list[str]:
    with open_source(uri, rules=rules) as source:
        return [text for group in source.row_groups() for text in source.read(group, 0, group.row_count)["text"].to_pylist()]


STORE: dict[str, Callable[[S3, Path, str], None]] = {"delta": store_delta, "lance": store_lance, "iceberg": store_iceberg}


@pytest.mark.parametrize("login", ["", "any:any%2Fkey@"], ids=["by environment", "by login"])
@pytest.mark.parametrize("kind", STORE)
def test_options_and_login_of_an_address_reach_the_library(
    server: S3, tmp_path: Path, kind: str, login: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = f"shop/{kind}{len(login)}/n/docs"
    STORE[kind](server, tmp_path, key)
    if login:
        for name in CREDENTIALS:
            if "KEY" in name:
                monkeypatch.delenv(name)
    assert texts(f"s3://{login}{key}{server.options}") == ["a", "b"]


@pytest.mark.parametrize("kind", ["delta", "lance"])
def test_an_option_that_the_library_does_not_take_is_refused(server: S3, tmp_path: Path, kind: str) -> None:
    key = f"shop/{kind}-options/n/docs"
    STORE[kind](server, tmp_path, key)
    with pytest.raises(SourceError, match=r"takes no tls_verify_certificates from an address; set it in the environment"):
        texts(f"s3://{key}{server.options}&tls_verify_certificates=false")


@pytest.fixture
def client(server: S3, monkeypatch: pytest.MonkeyPatch) -> SourceRules:
    """May read what lies below `s3://shop/home`, at the server that the environment names."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{server.host}:{server.port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    return SourceRules(hosts=("s3://shop/home",))


@pytest.mark.parametrize("kind", STORE)
def test_a_client_reads_a_table_of_its_prefix(server: S3, client: SourceRules, tmp_path: Path, kind: str) -> None:
    key = f"shop/home/{kind}/n/docs"
    STORE[kind](server, tmp_path, key)
    assert texts(f"s3://{key}", client) == ["a", "b"]


@pytest.mark.parametrize("place", ["s3://shop/secret", "file://{folder}/secret"], ids=["bucket", "disk"])
def test_a_table_of_a_client_names_no_file_elsewhere(server: S3, client: SourceRules, tmp_path: Path, place: str) -> None:
    key = f"shop/home/{place[:2]}/n/docs"
    store_iceberg(server, tmp_path, key, **{"write.data.path": place.format(folder=tmp_path)})
    assert texts(f"s3://{key}") == ["a", "b"]
    with pytest.raises(SourceError, match="nothing that this server reads for its clients"):
        texts(f"s3://{key}", client)
