"""`harvester results` and `harvester sql`: read results."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Annotated, cast

import typer

from connectors.targets.target import is_table
from harvester.cli.invocation import Invocation, command
from harvester.cli.job.export import Format, format_of, head, replacing, write
from harvester.cli.job.into import IntoOption, checked_target, copying, written_line
from harvester.cli.job.progress import show, updates
from harvester.cli.job.reading import Reading, RowStream, reading, results_query
from harvester.cli.job.status import SomeJobArgument, all_views, pick
from harvester.cli.job.viewed import ANSWERS, VIEW_ROWS, summary, viewed
from harvester.cli.job.wired import is_elsewhere
from harvester.cli.slow import said_if_slow
from harvester.cli.table import Screen, screen_columns, text_table
from harvester.errors import HarvesterError, UsageError
from jobs.states import ENDED

app = typer.Typer()

ENDING_ROWS = 10_000  # failed rows whose causes are counted
OutOption = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="FILE", help="File to write: .parquet, .csv, .jsonl, .json or .md.", show_default=False),
]


@command(app)
def results(
    here: Invocation,
    job: SomeJobArgument = "latest",
    output: OutOption = None,
    shape: Annotated[
        Format | None, typer.Option("--format", "-f", help="Output format. Default: by the file's name, else jsonl.", show_default=False)
    ] = None,
    errors: Annotated[bool, typer.Option("--errors", help="Only rows with status error.")] = False,
    wide: Annotated[bool, typer.Option("--wide", help="All columns in the table that a terminal shows.")] = False,
    into: IntoOption = None,
) -> None:
    """Print a job's results, or write them to a file.

    Without -o, prints a table of inputs, answers and errors on a terminal, and JSON lines elsewhere. A running job has the rows
    finished so far. With --into, rows are written as they come until the job has ended. If that is killed, run it again: it continues
    and writes no row twice.

    \b
    Example:
        harvester results docs-7f3a -o summaries.parquet
        harvester results docs-7f3a --into shop.duckdb:summaries
    """
    if into is None and output is not None and is_table(str(output)):
        into, output = str(output), None
    if into is not None:
        if output is not None or shape is not None or errors:
            raise UsageError("--into cannot be combined with -o, --format or --errors; remove them")
        _copy_out(here, job, into)
        return
    with reading(here, results_query(job)) as source:
        if wide or (output is None and shape is None and not here.json and sys.stdout.isatty()):
            _show(source.results(job, only_errors=errors), is_wide=wide)
            return
        if output is not None and errors:
            source.check_parts(job)
        answer = source.results(job, only_errors=errors)
        _export(here, source, answer, output, shape or (format_of(output) if output else Format.JSONL))


@command(app)
def sql(
    here: Invocation,
    query: Annotated[
        str, typer.Argument(metavar="QUERY", help="One SQL statement that only reads; - takes it from standard input.", show_default=False)
    ],
    output: OutOption = None,
    shape: Annotated[
        Format | None, typer.Option("--format", "-f", help="Output format. Default: by the file's name, else table.", show_default=False)
    ] = None,
    limit: Annotated[int, typer.Option("--limit", metavar="N", min=1, help="Maximum rows to print as a table.")] = 40,
) -> None:
    """Query jobs, results and files with SQL.

    Views are jobs, leases, harvest, harvested, lengths and usage; results('JOB') gives the rows of a job. Name a Parquet, CSV, JSON or
    DuckDB file in quotes: select * from 'docs.parquet'. SQL cannot change harvester's state. --json prints one JSON array.

    \b
    Example:
        harvester sql "select title, output from results('latest') limit 5"
        harvester sql "select state, count(*) from jobs group by state" --format csv
    """
    wanted = shape or (format_of(output) if output else Format.JSON if here.json else Format.TABLE)
    query = sys.stdin.read() if query == "-" else query
    with reading(here, query) as source:
        answer = source.query(query)
        if output is None and wanted is Format.TABLE:
            _print_table(answer, limit)
        else:
            _export(here, source, answer, output, wanted)


def ending(here: Invocation, job: str) -> Iterator[str]:
    """Some of a job's answers and the causes of its errors; nothing where they cannot be read."""
    try:
        with reading(here, results_query(job)) as source:
            for wanted, count in (("ok", ANSWERS), ("error", ENDING_ROWS)):
                query = f"SELECT * FROM results('{job}') WHERE status = '{wanted}' LIMIT {count}"
                yield from summary(list(source.query(query).batches))
    except HarvesterError:
        return


def _show(answer: RowStream, *, is_wide: bool) -> None:
    shown, is_cut = head(answer.batches, VIEW_ROWS)
    sys.stdout.writelines(viewed(shown, answer.schema, is_wide=is_wide, screen=screen_columns()))
    if is_cut:
        print(f"... more than {VIEW_ROWS} rows; -o FILE writes all, --format jsonl prints them", file=sys.stderr)


def _copy_out(here: Invocation, job: str, into: str) -> None:
    reached = here.try_reach()
    if reached is not None and is_elsewhere(reached[0]):
        with reached[0] as client:
            file = checked_file(into)
            job = client.job(job).id
            show(updates(client, [job]))
        _print_copied(here, written(here, job, file))
        return
    name = checked_target(into, here, reached[1] if reached else None)
    if reached is None:
        view = pick(all_views(here), job)
        with copying(name, here.state_dir, view.id) as copy:
            copy.bring(is_final=True)
        if view.state not in ENDED:
            print(f"job {view.id} has not ended, and no server answers: these are the rows that are done", file=sys.stderr)
    else:
        with reached[0] as client:
            first = client.job(job)
            with copying(name, here.local_state(reached[1]), first.id) as copy:
                show(copy.follow(updates(client, [first.id])))
    _print_copied(here, copy.to_json())


def _print_copied(here: Invocation, copied: Mapping[str, object]) -> None:
    if here.json:
        here.print_json(copied)
    else:
        print(written_line(copied), file=sys.stderr)


def checked_file(into: str) -> Path:
    """A file that takes the results of a server elsewhere. Raises `UsageError` for a table, which only the server's machine fills."""
    if is_table(into):
        raise UsageError(f"{into} is a table, which is filled where the server runs; write a file with -o, and load that")
    format_of(Path(into))
    return Path(into)


def written(here: Invocation, job: str, path: Path) -> dict[str, object]:
    """Write all rows of a job that has ended, as `Copying.to_json` tells it."""
    with reading(here, results_query(job)) as source:
        answer = source.results(job)
        with replacing(path) as out:
            rows = write(out, format_of(path), answer.schema, answer.batches)
    return {"into": str(path), "rows_written": rows}


def _print_table(answer: RowStream, limit_rows: int) -> None:
    shown, is_cut = head(answer.batches, limit_rows)
    sys.stdout.writelines(text_table(answer.schema, shown, screen_columns()))
    if is_cut:
        print(f"... more than {limit_rows} rows; --limit shows more, -o FILE writes all", file=sys.stderr)


def _export(here: Invocation, source: Reading, answer: RowStream, output: Path | None, shape: Format) -> None:
    if output is None:
        if shape is Format.PARQUET and sys.stdout.isatty():
            raise UsageError("Parquet cannot be printed to a screen; write a file with -o FILE.parquet")
        out = cast("IO[bytes]", Screen(sys.stdout.buffer)) if sys.stdout.isatty() else sys.stdout.buffer
        write(out, shape, answer.schema, answer.batches)
        sys.stdout.flush()
        return
    source.check_target(output)
    with said_if_slow(f"Writing {output}"), replacing(output) as out:
        rows = write(out, shape, answer.schema, answer.batches)
    if here.json:
        here.print_json({"file": str(output), "format": shape.value, "rows": rows})
    else:
        print(f"wrote {rows:,} rows to {output}", file=sys.stderr)
