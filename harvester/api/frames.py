"""Write frames (pandas, polars, Arrow), DuckDB relations and lists of dicts to a file for upload; convert results back to them."""

from __future__ import annotations

import re
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from pathlib import Path, PurePath
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from harvester.api.errors import HarvesterError, needed
from harvester.api.rows import dicts

BATCH_ROWS = 16_384
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def batches_of(frame: Any) -> pa.RecordBatchReader:
    """Rows of ``frame``, a batch at a time. Raises `HarvesterError` for what holds none."""
    if isinstance(frame, pa.RecordBatchReader):
        return frame
    if isinstance(frame, pa.Table):
        return frame.to_reader(BATCH_ROWS)
    if isinstance(frame, list | tuple) and all(isinstance(row, Mapping) for row in frame):
        names = dict.fromkeys(name for row in frame for name in row)  # Arrow would take those of the first row alone
        return pa.table({name: _alike([row.get(name) for row in frame]) for name in names}).to_reader(BATCH_ROWS)
    for name in ("to_arrow_reader", "fetch_record_batch"):  # DuckDB, by version: its `__arrow_c_stream__` would load all rows at once
        if hasattr(frame, name):
            return getattr(frame, name)(BATCH_ROWS)
    if library_of(frame) == "pandas":  # its own Arrow stream would add the index as a column
        if not hasattr(frame, "columns"):
            raise HarvesterError(f"a {type(frame).__name__} is one column; make a data frame of it, e.g. with to_frame('text')")
        _check_distinct([str(name) for name in frame.columns])
        return pa.Table.from_pandas(frame, preserve_index=False).to_reader(BATCH_ROWS)
    polars = sys.modules.get("polars")
    if polars is not None and isinstance(frame, polars.DataFrame):  # Parquet cannot store its view types within dictionaries
        return frame.to_arrow(compat_level=polars.CompatLevel.oldest()).to_reader(BATCH_ROWS)
    if hasattr(frame, "__arrow_c_stream__"):
        return pa.RecordBatchReader.from_stream(frame)
    if hasattr(frame, "to_arrow"):
        return frame.to_arrow().to_reader(BATCH_ROWS)
    raise HarvesterError(
        f"a {type(frame).__name__} holds no rows; give a path, a data frame, an Arrow table, a DuckDB relation or a list of dicts"
    )


@contextmanager
def as_file(frame: Any, name: str) -> Iterator[Path]:
    """Write the rows of ``frame`` to a Parquet file, deleted after the block. One batch is in memory. Equal rows give equal bytes."""
    with tempfile.TemporaryDirectory(prefix="harvester-") as folder:
        path = Path(folder, f"{safe_name(name)}.parquet")
        try:
            reader = batches_of(frame)
            _check_distinct(reader.schema.names)
            with pq.ParquetWriter(path, reader.schema, compression="zstd") as writer:
                for batch in reader:
                    writer.write_batch(batch)
        except (OSError, pa.ArrowException, OverflowError, UnicodeError, TypeError) as error:
            raise HarvesterError(f"the rows cannot be written to {path}: {error}") from error
        yield path


def _check_distinct(names: Sequence[str]) -> None:
    name, count = max(Counter(names).items(), key=lambda each: each[1], default=("", 0))
    if count > 1:
        raise HarvesterError(f"the table has more than one column named {name!r}; rename all but one")


def _alike(values: list[Any]) -> list[Any]:
    """Turn dates into midnight datetimes if a column has both: if a date came first, Arrow would cut off the times."""
    if not any(isinstance(value, datetime) for value in values):
        return values
    return [datetime.combine(value, time()) if type(value) is date else value for value in values]


def safe_name(name: str) -> str:
    """``name`` made valid for an upload: at most 100 letters, digits, dots, - and _, not beginning with a dot or -. Suffixes are kept."""
    suffixes = "".join(PurePath(name).suffixes)
    stem, ending = (_UNSAFE.sub("-", part) for part in (name.removesuffix(suffixes), suffixes[-90:]))
    return (stem[-(100 - len(ending)) :].lstrip(".-") or "file") + ending


def library_of(frame: Any) -> str:
    return type(frame).__module__.partition(".")[0].lstrip("_")


def check_aligned(frame: Any, fields: Mapping[str, Any]) -> None:
    """Raise `HarvesterError` for a pandas frame of which a job would answer other rows than the first ones: their labels are not known."""
    named = [name for name in ("where", "sample", "query") if fields.get(name) is not None]
    if named and library_of(frame) == "pandas":
        raise HarvesterError(
            f"{', '.join(named)}: rows chosen on the server lose the index of a pandas frame; choose them in pandas first, "
            "or use submit() and results()"
        )


def like(frame: Any, table: pa.Table) -> Any:
    """Convert ``table`` to the kind of ``frame``: pandas, polars, a DuckDB relation, a list of dicts, else Arrow."""
    if isinstance(frame, list | tuple):
        return [row for batch in table.to_batches() for row in dicts(batch)]
    library = library_of(frame)
    if library == "pandas":  # keep the frame's index, by which pandas aligns assigned columns
        return table.to_pandas().set_axis(frame.index[: table.num_rows], axis=0)
    if library == "polars":
        return needed("polars", "a polars frame").from_arrow(table)
    if library == "duckdb":
        return needed("duckdb", "a DuckDB relation").from_arrow(table)
    return table
