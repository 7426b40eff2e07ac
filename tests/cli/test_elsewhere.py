"""Commands against a server of another machine: nothing of its files is read or written here, and nothing of ours there but by upload."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bench.harness.servers.jobs_server import JobsServer, serving
from jobs.access.handle import make_key
from jobs.config import SourcesConfig
from jobs.storage.folder import StateFolder

TEXTS = ["one fish", "two fish", "red fish"]


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobsServer]:
    """A server that reports a state folder at a path that this machine does not know."""
    monkeypatch.delenv("HARVESTER_STATE")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "own"))
    with serving(tmp_path / "there" / "state", told_state=Path("/srv/harvester-of-another-machine")) as server:
        monkeypatch.setenv("HARVESTER_URL", server.url)
        yield server


@pytest.fixture
def docs(tmp_path: Path) -> Path:
    path = tmp_path / "here" / "docs.parquet"
    path.parent.mkdir()
    pq.write_table(pa.table({"text": TEXTS}), path)
    return path


def submitted(cli: Callable[..., Any], *words: object, **options: Any) -> dict[str, Any]:
    result = cli("submit", *words, "--prompt", "Name the {text}", "--watch", "--json", **options)
    assert result.exit_code == 0, result.output
    return dict(json.loads(result.stdout.splitlines()[-1]))


def outputs(cli: Callable[..., Any], job: str) -> list[str]:
    result = cli("results", job)
    assert result.exit_code == 0, result.output
    return [json.loads(line)["output"] for line in result.stdout.splitlines()]


def test_a_file_goes_up_and_its_results_come_down(cli, elsewhere, docs, tmp_path):
    job = submitted(cli, docs)
    assert job["source"] != str(docs)
    assert outputs(cli, job["id"]) == [f"the {text}" for text in TEXTS]
    assert cli("results", job["id"], "-o", tmp_path / "out.parquet").exit_code == 0
    assert pq.read_table(tmp_path / "out.parquet")["text"].to_pylist() == TEXTS
    assert f"job    {job['id']}" in cli("show", job["id"]).stdout or job["id"] in cli("show", job["id"]).stdout
    assert job["id"] in cli("jobs").stdout


def test_the_same_file_again_is_the_same_job(cli, elsewhere, docs):
    assert submitted(cli, docs)["id"] == submitted(cli, docs)["id"]


def test_a_glob_a_csv_and_a_table_of_a_database_go_up(cli, elsewhere, docs, tmp_path):
    (docs.parent / "docs.csv").write_text("text\n" + "\n".join(TEXTS) + "\n")
    with duckdb.connect(str(docs.parent / "shop.duckdb")) as connection:
        connection.execute("CREATE TABLE docs AS SELECT unnest(?) AS text", [TEXTS])
    for source in ([docs.parent / "*.parquet"], [docs.parent / "docs.csv"], [docs.parent / "shop.duckdb", "--table", "docs"]):
        assert sorted(outputs(cli, submitted(cli, *source)["id"])) == sorted(f"the {text}" for text in TEXTS)


def test_sql_runs_there_and_its_rows_come_as_they_are(cli, elsewhere, docs):
    job = submitted(cli, docs)["id"]
    result = cli("sql", f"select count(*) as n, sum(row_id) as total from results('{job}')", "--json")
    assert json.loads(result.stdout) == [{"n": 3, "total": 3}]
    refused = cli("sql", "select * from 'docs.parquet'")
    assert refused.exit_code == 2
    assert "cannot be read here" in refused.stderr


def test_the_end_of_a_watched_job_shows_its_answers(cli, elsewhere, docs):
    shown = cli("submit", docs, "--prompt", "Name the {text}", "--watch").stdout
    assert "the red fish" in shown


def test_an_unknown_job_is_named(cli, elsewhere):
    result = cli("results", "nothing-0000")
    assert (result.exit_code, "unknown job" in result.stderr) == (2, True)


def test_a_file_is_written_when_the_job_has_ended_and_a_table_is_refused(cli, elsewhere, docs, tmp_path):
    job = submitted(cli, docs, "-o", tmp_path / "out.csv")
    assert (job["into"], job["rows_written"]) == (str(tmp_path / "out.csv"), 3)
    assert "the red fish" in (tmp_path / "out.csv").read_text()
    refused = cli("submit", docs, "--prompt", "{text}", "--into", f"{tmp_path}/shop.duckdb:docs", "--new")
    assert (refused.exit_code, "is a table, which is filled where the server runs" in refused.stderr) == (2, True)
    assert len(json.loads(cli("jobs", "--json").stdout)["jobs"]) == 1


def test_kept_columns_are_the_same_wherever_the_results_are_read(cli, elsewhere, tmp_path, monkeypatch):
    kept = {
        "took": pa.array([1_500_000, None, 3], pa.duration("us")),
        "amount": pa.array([Decimal(10**44 + 1), Decimal(-7), None], pa.decimal256(50, 0)),
    }
    docs = tmp_path / "docs.parquet"
    pq.write_table(pa.table({"text": TEXTS, **kept}), docs)
    job = submitted(cli, docs)["id"]
    there = cli("results", job).stdout
    assert cli("results", job, "-o", tmp_path / "there.parquet").exit_code == 0
    monkeypatch.setenv("HARVESTER_STATE", str(elsewhere.folder.root))
    monkeypatch.delenv("HARVESTER_URL")
    assert cli("results", job).stdout == there
    assert cli("results", job, "-o", tmp_path / "here.parquet").exit_code == 0
    assert cli("results", job, "--into", tmp_path / "into.parquet").exit_code == 0
    tables = [pq.read_table(tmp_path / f"{name}.parquet").replace_schema_metadata(None) for name in ("there", "here", "into")]
    assert {name: tables[0][name].combine_chunks() for name in kept} == kept
    assert tables[1].equals(tables[0])
    assert tables[2].equals(tables[0])


def test_standard_input_goes_up(elsewhere, tmp_path):
    words = [sys.executable, "-P", "-m", "harvester", "submit", "-", "--prompt", "Name the {text}", "--watch", "--json"]
    rows = "\n".join(json.dumps({"text": text}) for text in TEXTS)
    done = subprocess.run(words, input=rows, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1])["rows_ok"] == 3
    assert not list((tmp_path / "own").rglob("*.parquet"))


def test_another_state_folder_of_the_same_path_is_not_taken_for_the_servers(cli, docs, tmp_path, monkeypatch):
    """Two machines with the same user and the same folders: our key is not the server's, and our file not the one it sees there."""
    ours = StateFolder(tmp_path / "ours")
    ours.prepare()
    make_key(ours)
    monkeypatch.delenv("HARVESTER_STATE")
    with serving(tmp_path / "there" / "state", told_state=ours.root) as server:
        monkeypatch.setenv("HARVESTER_URL", server.url)
        job = submitted(cli, docs)
        assert outputs(cli, job["id"]) == [f"the {text}" for text in TEXTS]
        assert list(server.folder.uploads.rglob("docs.parquet"))
        assert not ours.jobs.joinpath(job["id"]).exists()


def test_a_file_that_the_server_sees_too_is_not_sent(cli, docs, tmp_path, monkeypatch):
    told = Path("/srv/harvester-of-another-machine")
    monkeypatch.delenv("HARVESTER_STATE")
    with serving(tmp_path / "there" / "state", told_state=told, sources=SourcesConfig(roots=(str(docs.parent),))) as server:
        monkeypatch.setenv("HARVESTER_URL", server.url)
        assert submitted(cli, docs)["source"] == str(docs)
        assert not list(server.folder.uploads.rglob("*.parquet"))
