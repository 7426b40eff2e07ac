"""Rows from standard input: kept in the state folder before a job is made of them."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from connectors.files.stdin import Form, forget_input, keep_input
from harvester.cli.invocation import Invocation
from harvester.errors import HarvesterError, UnreachableError, UsageError
from jobs.storage.folder import StateFolder, private_files

STANDARD_INPUT = "-"


@dataclass(slots=True)
class Given:
    """The source of the job. Set ``in_use`` once there is a job that may read it."""

    uri: str
    in_use: bool = False


def check_text_form(source: str, encoding: str | None, ragged: bool) -> None:
    """Raise `UsageError` for options of text files that are given with ``-``."""
    if source == STANDARD_INPUT and (encoding is not None or ragged):
        named = f"--encoding {encoding}" if encoding is not None else "--ragged"
        raise UsageError(f"{named} is for files; convert standard input before (iconv -f cp1252 -t utf-8), or submit a file")


@contextmanager
def given_source(here: Invocation, source: str, form: Form | None, *, for_a_job: bool) -> Iterator[Given]:
    """``source`` unchanged; for ``-``, the Parquet file that keeps standard input.

    The file is removed if the block fails before there is a job. For a server elsewhere, to which it is uploaded, it is always removed.
    Raises `UsageError` if nothing is piped in.
    """
    if source != STANDARD_INPUT:
        if form is not None:
            raise UsageError(f"--input-format applies to standard input only; remove it: the name of {source} tells its format")
        yield Given(source)
        return
    if sys.stdin.isatty():
        raise UsageError("nothing is piped into standard input; pipe rows into it: cat docs.jsonl | harvester submit -")
    with ExitStack() as scratch:
        state_dir = _state_dir(here) if for_a_job else None
        if state_dir is not None:
            folder = StateFolder(state_dir).inputs
        else:
            folder = Path(scratch.enter_context(tempfile.TemporaryDirectory(prefix="harvester-stdin-")))
        with private_files():
            kept = keep_input(sys.stdin.buffer, folder, form)
        if kept.guessed and kept.form in (Form.CSV, Form.TSV, Form.LINES):
            told = "one row a line" if kept.form is Form.LINES else kept.form.upper()
            print(f"Note: standard input is read as {told}; --input-format says otherwise", file=sys.stderr)
        given = Given(str(kept.path))
        try:
            yield given
        except (HarvesterError, KeyboardInterrupt) as error:
            # If the connection was lost, the server may still have made the job.
            if not given.in_use and not isinstance(error, UnreachableError):
                forget_input(kept)
            raise


def _state_dir(here: Invocation) -> Path | None:
    """Where the input is kept for a server of this user; None for one elsewhere."""
    reached = here.try_reach()
    if reached is None:
        return here.state_dir
    client, info = reached
    with client:
        is_user = client.is_user()
    if is_user is None and not Path(info.state).is_dir():
        raise UsageError(
            f"the server at {client.url} is of an earlier version, and its state folder {info.state} is not on this machine; "
            "write the rows to a file or bucket that the server reads, and submit that"
        )
    return None if is_user is False else Path(info.state)
