"""`harvester repair`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from harvester.cli.invocation import Invocation, command
from harvester.errors import StorageError
from jobs.repair.repair import Report
from jobs.repair.repair import repair as repair_folder
from jobs.storage.folder import StateFolder, keep_private
from jobs.storage.hold import repairing
from jobs.storage.place import known_folder, settle_storage

app = typer.Typer()


@command(app)
def repair(
    here: Invocation,
    storage: Annotated[
        str | None, typer.Option("--storage", metavar="URI", help="For a new state folder: the storage of a lost one.", show_default=False)
    ] = None,
) -> None:
    """Check the state folder and mend its ledger.

    Stop the server first: a ledger that is in use is left alone. Every part is read against its checksums, and the ledger is made to
    agree with them. A damaged ledger is made again from the folders of its jobs, which are then paused; so are completed ones of which a
    part is damaged. Nothing is deleted.

    \b
    Example:
        harvester repair
        harvester repair --state ./new --storage s3://bucket/harvester
    """
    folder = StateFolder(here.state_dir)
    if not folder.root.is_dir() and storage is None:
        raise StorageError(f"there is no state folder {folder.root}; name one with --state")
    keep_private()
    folder.prepare()
    with repairing(folder):
        try:
            if storage is not None:
                settle_storage(folder, storage, may_adopt=True)
            report = repair_folder(known_folder(folder.root))
        finally:
            folder.give_to_owner()
    if here.json:
        here.print_json({"state": str(folder.root), **asdict(report)})
    else:
        print("\n".join(told(report)))


def told(report: Report) -> list[str]:
    """One line for each thing that was found."""
    lines = [f"problem: {problem}" for problem in report.problems]
    if report.ledger_aside is not None:
        lines.append(f"The ledger was damaged: it lies at {report.ledger_aside} now, and a new one was made from the folders of the jobs")
    elif report.changes_lost is None:
        lines.append("The ledger can be read, but nobody had counted its changes: some may be lost")
    elif report.changes_lost:
        lines.append(f"The ledger had lost its last {report.changes_lost} changes")
    lines += [f"Restored job {job_id}, paused; go on with: harvester resume {job_id}" for job_id in report.restored]
    lines += [f"A part that is damaged or fits no slice was put aside as {path}" for path in report.parts_aside]
    if report.slices_open:
        lines.append(f"{report.slices_open} slices are open again: harvester jobs tells of which jobs, harvester resume goes on with one")
    if report.slices_found:
        lines.append(f"{report.slices_found} slices were done that the ledger did not know of")
    if report.rows_spooled:
        lines.append(f"{report.rows_spooled:,} rows of slices in work lie in spools and need no computing")
    return [*lines, f"Jobs in the ledger: {report.jobs}" + ("" if lines else "; it is whole, and so are all of their parts")]
