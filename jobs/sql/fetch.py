"""Which results and tables of the ledger a query reads, so that those alone are fetched before it runs."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from connectors.databases.shape import tokens
from connectors.parquet.parts import SUFFIX
from jobs.storage.folder import StateFolder

JOBS = "jobs"
LATEST = "latest"
_BY_ANY_NAME = frozenset({"query", "query_table", "duckdb_tables"})  # functions that reach a table whose name is no word of the query


def newest_ids(jobs: pa.Table | None) -> list[str]:
    """Ids of the ledger's table of jobs, newest first."""
    if jobs is None:
        return []
    lines = zip(jobs.column("created_at_s").to_pylist(), jobs.column("id").to_pylist(), strict=True)
    return [str(job_id) for _, job_id in sorted(lines, reverse=True)]


def tables_named(query: str, tables: Sequence[str]) -> list[str]:
    """The ledger's ``tables`` that the query names, and always the table of jobs, by which results are found.

    All tables where the query may compute a name.
    """
    words = {word.text.strip('"').lower() for word in tokens(query)}
    return [name for name in tables if name == JOBS or name in words or words & _BY_ANY_NAME]


def jobs_named(query: str, known: Sequence[str]) -> list[str]:
    """The job ids of ``known`` (newest first) that the query reads by ``results('JOB')``; all of them where it computes an id or a text."""
    words = tokens(query)
    named: set[str] = set()
    for at, word in enumerate(words):
        name = word.text.strip('"').lower()
        if name not in ("results", "query") or [one.text for one in words[at + 1 : at + 2]] != ["("]:
            continue
        given = words[at + 2 : at + 4]
        is_one_text = len(given) == 2 and given[1].text == ")" and given[0].kind == "string_const" and given[0].text.startswith("'")
        if name == "query" or not is_one_text:
            return list(known)
        job_id = given[0].text[1:-1].replace("''", "'")
        named.update(known[:1] if job_id == LATEST else [job_id])
    return [job_id for job_id in known if job_id in named]


def fetch_results(folder: StateFolder, query: str, known: Sequence[str]) -> None:
    """Fetch the parts of the jobs that the query names from the storage, if there is one. Raises `StorageError`."""
    if folder.mirror is not None:
        for job_id in jobs_named(query, known):
            folder.mirror.fetch_folder(folder.results(job_id), SUFFIX)
