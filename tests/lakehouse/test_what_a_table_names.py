"""A table's own files name others: classes, hosts, splits, data files. None leads to what its reader may not read, and none runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable, write_deltalake
from pyiceberg.catalog.memory import InMemoryCatalog

from connectors.errors import SourceError
from connectors.open import open_source
from connectors.paths.rules import SourceRules

DOCS = pa.table({"text": ["a"]})
SECRET = pa.table({"text": ["secret"]})


class Called:
    """What a table's properties may name: keeps what it was called with."""

    calls: ClassVar[list[Any]] = []

    def __init__(self, properties: Any) -> None:
        self.calls.append(properties)


def texts(uri: str, rules: SourceRules | None, table: str | None = None) -> list[str]:
    with open_source(uri, rules=rules, table=table) as source:
        return [text for group in source.row_groups() for text in source.read(group, 0, group.row_count)["text"].to_pylist()]


def iceberg(warehouse: str, properties: dict[str, str]) -> None:
    """A table of one row in the folder `n/docs`."""
    catalog = InMemoryCatalog("test", warehouse=warehouse)
    catalog.create_namespace("n")
    catalog.create_table("n.docs", DOCS.schema, properties=properties).append(DOCS)


@pytest.mark.parametrize("is_client", [True, False], ids=["client", "own"])
def test_no_class_that_an_iceberg_table_names_is_called(tmp_path: Path, is_client: bool) -> None:
    iceberg(f"file://{tmp_path}", {})
    newest = max((tmp_path / "n/docs/metadata").glob("*.metadata.json"))
    told = json.loads(newest.read_text())
    name = f"{Called.__module__}.{Called.__qualname__}"
    told["properties"] = {"py-io-impl": name, "write.py-location-provider.impl": name, "s3.retry-strategy-impl": name}
    newest.write_text(json.dumps(told))
    Called.calls.clear()
    assert texts(str(tmp_path / "n/docs"), SourceRules((str(tmp_path),)) if is_client else None) == ["a"]
    assert Called.calls == []


@pytest.mark.parametrize("named", ["secret", "home/d%61ta"], ids=["by path", "by a link that is written as another folder's name"])
def test_an_iceberg_table_of_a_client_names_no_file_elsewhere(tmp_path: Path, named: str) -> None:
    home, secret = tmp_path / "home", tmp_path / "secret"
    for folder in (home / "data", secret):
        folder.mkdir(parents=True)
    (home / "d%61ta").symlink_to(secret)
    iceberg(f"file://{home}", {"write.data.path": f"file://{tmp_path / named}"})
    (written,) = secret.glob("*.parquet")
    pq.write_table(DOCS, home / "data" / written.name)
    assert texts(str(home / "n/docs"), None) == ["a"]
    with pytest.raises(SourceError, match="nothing that this server reads"):
        texts(str(home / "n/docs"), SourceRules((str(home),)))


OUTSIDE = {
    "a path": "{secret}",
    "an address": "file://{secret}",
    "an address in capitals": "FILE:{secret}",
    "above": "../../secret/x.parquet",
    "above, escaped": "%2e%2e/.%2E/secret/x.parquet",
    "above, by backslashes": "..\\../secret\\x.parquet",
    "above, with a tab": ".\t./../secret/x.parquet",
    "above, with a space": " ../../secret/x.parquet",
}


@pytest.mark.parametrize("named", OUTSIDE.values(), ids=OUTSIDE.keys())
def test_a_delta_table_of_a_client_names_no_file_elsewhere(tmp_path: Path, named: str) -> None:
    """Not even where a file of its own lies at the place below its folder where such a path seems to lead."""
    docs, secret = tmp_path / "home/docs", tmp_path / "secret/x.parquet"
    secret.parent.mkdir()
    pq.write_table(SECRET, secret)
    write_deltalake(docs, DOCS)
    own = next(docs.glob("*.parquet"))
    log = max((docs / "_delta_log").glob("*.json"))
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if "add" in line:
            line["add"] |= {"path": named.format(secret=secret), "size": secret.stat().st_size}
    log.write_text("\n".join(map(json.dumps, lines)))
    assert texts(str(docs), None) == ["secret"]
    (own_place,) = DeltaTable(docs).file_uris()
    decoy = Path(own_place)
    decoy.parent.mkdir(parents=True, exist_ok=True)
    own.rename(decoy)
    with pytest.raises(SourceError, match=r"which is not in its folder|nothing that this server reads"):
        texts(str(docs), SourceRules((str(tmp_path / "home"),)))


def test_a_client_reads_a_delta_table_of_any_partition(tmp_path: Path) -> None:
    words = ["one two", "100%", "a/b", "ä:?#"]
    write_deltalake(tmp_path / "my docs", pa.table({"text": words, "n": range(4)}), partition_by=["text"])
    assert sorted(texts(str(tmp_path / "my docs"), SourceRules((str(tmp_path),)))) == sorted(words)


def saved(folder: Path, table: pa.Table) -> Path:
    """As `datasets.Dataset.save_to_disk` writes it."""
    folder.mkdir(parents=True)
    with pa.ipc.new_stream(folder / "data.arrow", table.schema) as writer:
        writer.write_table(table)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    (folder / "dataset_info.json").write_text("{}")
    return folder


@pytest.mark.parametrize("split", ["../../secret", "..", ".", "", "train/../../../secret", "{secret}"])
def test_a_split_leads_to_no_other_folder(tmp_path: Path, split: str) -> None:
    secret = saved(tmp_path / "secret", SECRET)
    saved(tmp_path / "home/docs/train", DOCS)
    name = split.format(secret=secret)
    (tmp_path / "home/docs/dataset_dict.json").write_text(json.dumps({"splits": ["train", name]}))
    rules = SourceRules((str(tmp_path / "home"),))
    assert texts(str(tmp_path / "home/docs"), rules, "train") == ["a"]
    with pytest.raises(SourceError, match="not a folder beside it"):
        texts(str(tmp_path / "home/docs"), rules, name)


@pytest.mark.parametrize("filename", ["../../secret/data.arrow", "{secret}/data.arrow", "..", ""])
def test_a_data_file_of_a_saved_data_set_is_beside_its_state(tmp_path: Path, filename: str) -> None:
    secret, docs = saved(tmp_path / "secret", SECRET), saved(tmp_path / "home/docs", DOCS)
    (docs / "state.json").write_text(json.dumps({"_data_files": [{"filename": filename.format(secret=secret)}]}))
    with pytest.raises(SourceError, match="not files beside it"):
        texts(str(docs), SourceRules((str(tmp_path / "home"),)))


def test_a_hidden_link_of_a_saved_data_set_leads_nowhere_else(tmp_path: Path) -> None:
    secret, docs = saved(tmp_path / "secret", SECRET), saved(tmp_path / "home/docs", DOCS)
    (docs / ".data.arrow").symlink_to(secret / "data.arrow")
    (docs / "state.json").write_text(json.dumps({"_data_files": [{"filename": ".data.arrow"}]}))
    with pytest.raises(SourceError, match="nothing that this server reads"):
        texts(str(docs), SourceRules((str(tmp_path / "home"),)))
