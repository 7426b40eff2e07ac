"""A prompt as a DuckDB function: ``select ask('Name the mood: ' || text) from reviews``.

DuckDB hands the function a vector of rows; each vector becomes one job, so a query over many rows asks for many at once. For a whole table,
a job of the relation is the shorter way: see the end.
"""

from __future__ import annotations

import sys

import duckdb
import pyarrow as pa

import harvester
from harvester.api.client import Harvester


def register(connection: duckdb.DuckDBPyConnection, client: Harvester) -> None:
    """Add ``ask(VARCHAR) -> VARCHAR``. A row that failed is null."""

    def ask(prompts: pa.Array) -> pa.Array:
        asked = pa.table({"prompt": prompts.combine_chunks() if isinstance(prompts, pa.ChunkedArray) else prompts})
        return client.map(asked, "{prompt}")["output"].combine_chunks()

    connection.create_function("ask", ask, ["VARCHAR"], "VARCHAR", type="arrow")


def main(url: str | None = None) -> list[tuple[object, ...]]:
    with harvester.connect(url) as client, duckdb.connect() as connection:
        register(connection, client)
        connection.execute("create table reviews as select * from (values (1, 'good soup'), (2, 'cold tea')) t(id, text)")
        rows = connection.execute("select id, ask('Name the mood of: ' || text) as mood from reviews order by id").fetchall()
        whole = client.map(connection.table("reviews"), "Name the mood of: {text}")
        return [*rows, *whole.project("id, output").order("id").fetchall()]


if __name__ == "__main__":
    print(*main(*sys.argv[1:]), sep="\n")
