"""From what a user names to a source: which connector reads it, and one clear error where none can."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from pyarrow import fs

from connectors import duckdb, files
from connectors.base import Source
from connectors.database import Database
from connectors.edge import reading
from connectors.location import Location, locate
from connectors.parquet import ParquetSource
from connectors.request import listed
from connectors.snapshot import Origin
from harvester.errors import SourceError

KNOWN = (
    f"Parquet ({', '.join(files.SUFFIXES)}: a file, a glob or a folder, on disk or at an address such as s3://bucket/path) "
    f"and DuckDB ({', '.join(duckdb.SUFFIXES)}: a file with --table or --query)"
)


def open_source(
    uri: str,
    *,
    table: str | None = None,
    query: str | None = None,
    snapshot_dir: Path | None = None,
    fingerprint: str | None = None,
) -> Source:
    """Open what ``uri`` names. The caller closes it.

    ``table`` or ``query`` belong to a DuckDB file, whose rows are copied to Parquet in ``snapshot_dir`` (None: a temporary folder until
    the source is closed). ``fingerprint`` is that of a DuckDB source opened before with the same ``snapshot_dir``: its copy is used even
    if the file changed since; other sources ignore it.

    Raises `SourceError` for what cannot be read: no such path, not Parquet, no rows, an unknown kind, options that do not fit.
    """
    location = locate(uri)
    if PurePosixPath(location.path).suffix.lower() in duckdb.SUFFIXES and not _is_folder(location):
        return duckdb.DuckdbSource(_origin(location, table, query), snapshot_dir, fingerprint)
    if table is not None or query is not None:
        option = "--table" if table is not None else "--query"
        raise SourceError(f"{option} goes with a DuckDB file ({', '.join(duckdb.SUFFIXES)}), not with {location.label}; leave it out")
    if not files.is_glob(location.path) and not files.suffix_of(location.path) and not _is_folder(location):
        raise _unknown(location)
    return ParquetSource(location)


def _origin(location: Location, table: str | None, query: str | None) -> Origin:
    if location.local is None:
        raise SourceError(f"a DuckDB file must be on a local disk: copy {location.label} here first")
    if table is not None and query is not None:
        raise SourceError(f"both --table {table} and --query were given for {location.label}; give one of them")
    if table is None and query is None:
        with Database.open(location.local) as database:
            tables = listed(database.tables()) or "none"
        raise SourceError(f"{location.label} is a DuckDB file: choose --table or --query; its tables: {tables}")
    return Origin(location.path, table, query)


def _is_folder(location: Location) -> bool:
    with reading(location.uri):
        return bool(location.files.get_file_info([location.path])[0].type == fs.FileType.Directory)


def _unknown(location: Location) -> SourceError:
    with reading(location.uri):
        missing = location.files.get_file_info([location.path])[0].type == fs.FileType.NotFound
    if missing:
        return SourceError(f"{location.label} does not exist; give the path of a file, glob or folder of {KNOWN}")
    kind = PurePosixPath(location.path).suffix or "a file without suffix"
    return SourceError(f"{location.label} is of an unknown kind ({kind}); known: {KNOWN}")
