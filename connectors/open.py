"""Opens the source that a user names: picks the connector that reads it, or raises one clear error."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath

from pyarrow import fs

from connectors.base import Source, listed
from connectors.copied.snapshot import Origin, snapshot_path
from connectors.copied.source import CopiedSource, Reading, Rows
from connectors.databases.database import Database
from connectors.databases.duckdb import AttachedReading, DuckdbReading
from connectors.databases.sqlite import SqliteReading, is_sqlite, sqlite_tables
from connectors.edge import reading, shown
from connectors.errors import SourceError
from connectors.files.encoding import checked_encoding
from connectors.files.form import TextForm
from connectors.files.forward import FilesReading
from connectors.files.sheets import SheetReading
from connectors.lakehouse.delta import DeltaReading
from connectors.lakehouse.huggingface import saved_files
from connectors.lakehouse.iceberg import IcebergReading
from connectors.lakehouse.lance import LanceReading
from connectors.parquet.source import ParquetSource, name_of
from connectors.paths.files import find
from connectors.paths.location import Location, locate
from connectors.paths.marks import TableFormat, marks_of
from connectors.paths.names import DATABASES, FileKind, source_name
from connectors.paths.rules import SourceRules
from connectors.select import HeadReading, QueriedReading, SelectedReading
from connectors.selection import Selection

# As DuckDB's ATTACH writes them, and as the databases themselves do: postgres:dbname=shop, postgresql://host/shop.
_ATTACHED = re.compile(r"^(postgres|postgresql|mysql|md|odbc|duckdb|sqlite):", re.IGNORECASE)

_TABLE = re.compile(r"(?P<file>.+\.(?:duckdb|ddb|db)):(?P<table>[^/\\:]+)", re.IGNORECASE)


Found = Reading | ParquetSource  # what is copied, and what is read in place


def is_attached(uri: str) -> bool:
    """Whether ``uri`` names a database in the words of DuckDB's ATTACH, and no path."""
    return _ATTACHED.match(uri) is not None


def open_source(
    uri: str,
    *,
    table: str | None = None,
    query: str | None = None,
    selection: Selection | None = None,
    form: TextForm | None = None,
    snapshot_dir: Path | None = None,
    fingerprint: str | None = None,
    rules: SourceRules | None = None,
    max_copied_bytes: int | None = None,
) -> Source:
    """Open the source at ``uri``. The caller closes it.

    Parquet is read in place. Everything else, and what ``query`` or ``selection`` choose, is copied to Parquet in ``snapshot_dir`` (None: a
    temporary folder until the source is closed). For a ``limit`` alone no more rows are copied than it asks for. Rows chosen otherwise, of
    a source that is not Parquet, are chosen from a copy of all rows, which is removed before this returns.

    ``table``: table of a database, sheet of a workbook, or split of a Hugging Face data set. ``query`` runs in the database; other sources
    are the table ``source`` in it. ``form``: encoding and ragged rows of text files. ``fingerprint``: that of a source opened before with
    the same ``snapshot_dir``; its copy is used even if the origin changed or went away since; for Parquet it is ignored. ``rules`` limit
    what is opened for a client other than this program's user, also the files that a table format's log names; ``max_copied_bytes`` limits
    what is copied for it.

    Raises `SourceError` for what cannot or may not be read: no such path, another kind than its suffix says, no rows, options that do not
    fit.
    """
    uri, table = _split(uri, table)
    copied = partial(CopiedSource, snapshot_dir=snapshot_dir, fingerprint=fingerprint, max_bytes=max_copied_bytes)
    if snapshot_dir is not None and fingerprint is not None and snapshot_path(snapshot_dir, fingerprint).exists():
        return copied(_Kept(Origin(uri, table, query), fingerprint))
    told = TextForm(checked_encoding(form.encoding), form.ragged) if form is not None else TextForm()
    bounds = _Bounds(rules, max_copied_bytes, selection.head_rows if selection else None, snapshot_dir)
    with ExitStack() as held:

        def whole(found: Found) -> Source:
            if isinstance(found, ParquetSource):
                return held.enter_context(found)
            return held.enter_context(CopiedSource(found, max_bytes=max_copied_bytes, scratch=snapshot_dir))

        found = _found(uri, table, query, told, bounds, whole)
        if selection:
            found = _chosen(Origin(uri, table, query or selection.label), found, selection, whole, snapshot_dir)
        return found if isinstance(found, ParquetSource) else copied(found)


@dataclass(frozen=True, slots=True)
class _Bounds:
    """``max_rows``: as many of the first rows alone are asked for. ``scratch``: folder for what is kept while a source is opened."""

    rules: SourceRules | None
    max_copied_bytes: int | None
    max_rows: int | None
    scratch: Path | None


def _found(uri: str, table: str | None, query: str | None, told: TextForm, bounds: _Bounds, whole: Callable[[Found], Source]) -> Found:
    """What ``uri`` names. ``whole`` opens what a query is asked of."""
    if is_attached(uri):
        _check_form(told, uri)
        return _attached(uri, table, query, bounds)
    location = locate(uri, bounds.rules)
    is_folder = _is_folder(location)
    if PurePosixPath(location.path).suffix.lower() in DATABASES and not is_folder:
        _check_form(told, location.label)
        return _database(location, table, query, bounds)
    found = _of_files(location, table, told, is_folder=is_folder)
    return found if query is None else QueriedReading(Origin(uri, table), whole(found), query, bounds.scratch)


def _chosen(origin: Origin, found: Found, selection: Selection, whole: Callable[[Found], Source], scratch: Path | None) -> Reading:
    """The selected rows. The first rows of what is copied are read as it comes; for others all rows are opened."""
    if selection.head_rows is not None and not isinstance(found, ParquetSource):
        return HeadReading(origin, found, selection)
    return SelectedReading(origin, whole(found), selection, scratch)


def _of_files(location: Location, table: str | None, told: TextForm, *, is_folder: bool) -> Found:
    """The files of a location, or its folder in a table format."""
    found = _reading(location, table, told) if is_folder else None
    if found is not None:
        return found
    kind, data_files = find(location)
    if kind is FileKind.SHEET:
        _check_form(told, location.label)
        return SheetReading(location, data_files, table)
    if table is not None:
        raise SourceError(
            f"--table applies to databases ({', '.join(DATABASES)}), workbooks and data sets with splits, "
            f"not to {location.label}; remove it"
        )
    if kind in (FileKind.PARQUET, FileKind.ARROW):
        _check_form(told, location.label)
    if kind is FileKind.PARQUET:
        return ParquetSource(location, data_files=data_files)
    if told.ragged and kind is not FileKind.CSV:
        raise SourceError(f"--ragged applies to CSV only, not to {location.label}; remove it")
    return FilesReading(location, kind, data_files, told)


def _reading(location: Location, table: str | None, told: TextForm) -> Reading | None:
    """The reading of a folder in a table format; None for a folder of plain files."""
    with reading(location.uri):
        form = marks_of(location.files, location.path)
    if form is None:
        return None
    _check_form(told, location.label)
    if form is TableFormat.HUDI:
        raise SourceError(f"{location.label} is a Hudi table, which is not read; export it to Parquet or Delta and submit that")
    if form is TableFormat.HUGGING_FACE:
        return FilesReading(location, FileKind.ARROW, saved_files(location, table))
    if table is not None:
        raise SourceError(f"{location.label} is one {form} table; remove --table {table}")
    if form is TableFormat.DELTA:
        return DeltaReading(location)
    return IcebergReading(location) if form is TableFormat.ICEBERG else LanceReading(location)


def _check_form(told: TextForm, label: str) -> None:
    if told != TextForm():
        option = "--encoding" if told.encoding is not None else "--ragged"
        raise SourceError(f"{option} applies to text files only, not to {shown(label)}; remove it")


def _split(uri: str, table: str | None) -> tuple[str, str | None]:
    """Split ``shop.duckdb:docs``, as ``--into`` names a table, into file and table, unless a file has that whole name."""
    match = _TABLE.fullmatch(uri)
    if match is None or "://" in uri or is_attached(uri):
        return uri, table
    if os.path.exists(os.path.expanduser(uri)):  # noqa: PTH110, PTH111 - raises nothing: no rule was applied yet
        return uri, table
    if table is not None and table != match["table"]:
        raise SourceError(f"{shown(uri)} names the table {match['table']}, and --table {table}; give one of them")
    return match["file"], match["table"]


class _Kept:
    """An origin whose copy exists, so that it is not read again."""

    def __init__(self, origin: Origin, fingerprint: str) -> None:
        self.origin = origin
        self.name = source_name((origin.table or "").rpartition(".")[2], name_of(origin.path))
        self._fingerprint = fingerprint

    def fingerprint(self) -> str | None:
        return self._fingerprint

    def rows(self) -> AbstractContextManager[Rows]:
        raise SourceError(f"the copy of {self.origin.label} was removed; submit it again")


def _database(location: Location, table: str | None, query: str | None, bounds: _Bounds) -> Reading:
    if location.local is None:
        raise SourceError(f"a database file must be on a local disk: copy {location.label} here first")
    location.check_file(location.path)
    sqlite = is_sqlite(location.local)
    if table is None and query is None:
        with reading(location.uri):
            tables = sqlite_tables(location.local) if sqlite else _duckdb_tables(location.local)
        kind = "SQLite" if sqlite else "DuckDB"
        raise SourceError(f"{location.label} is a {kind} file: choose --table or --query; its tables: {listed(tables) or 'none'}")
    origin = _origin(location.path, table, query)
    return SqliteReading(origin, bounds.max_copied_bytes, bounds.max_rows) if sqlite else DuckdbReading(origin)


def _duckdb_tables(path: Path) -> list[str]:
    with Database.open(path) as database:
        return database.tables()


def _attached(uri: str, table: str | None, query: str | None, bounds: _Bounds) -> Reading:
    scheme, _, rest = uri.partition(":")
    if scheme.lower() in ("duckdb", "sqlite") and not rest.startswith("//"):
        return _database(locate(rest, bounds.rules), table, query, bounds)
    if bounds.rules is not None:
        bounds.rules.check_database(uri)
    if table is None and query is None:
        with Database.attach(uri) as database:
            raise SourceError(f"{shown(uri)} is a database: choose --table or --query; its tables: {listed(database.tables()) or 'none'}")
    return AttachedReading(_origin(uri, table, query), bounds.scratch)


def _origin(path: str, table: str | None, query: str | None) -> Origin:
    if table is not None and query is not None:
        raise SourceError(f"both --table {table} and --query were given for {shown(path)}; give one of them")
    return Origin(path, table, query)


def _is_folder(location: Location) -> bool:
    with reading(location.uri):
        return bool(location.files.get_file_info([location.path])[0].type == fs.FileType.Directory)
