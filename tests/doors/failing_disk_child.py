"""Uses a ledger while its disk fails, and dies without closing it. Prints the jobs acknowledged and, for each failure, what was raised."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from connectors.errors import HarvesterError
from jobs.ledger.ledger import Ledger
from jobs.testing import scripted_plan


def main(state: Path, flag: Path) -> None:
    ledger = Ledger(state / "ledger.sqlite", state / "jobs", lease_s=60.0, now_s=0.0, new_server=True)
    taken, raised = [], []
    for number in range(6):
        if number in (2, 4):
            flag.touch()
        if number == 3:
            flag.unlink()
        job_id = f"job-{number}"
        try:
            ledger.submit(scripted_plan(job_id), new=True)
            taken.append(job_id)
        except Exception as error:
            raised.append([type(error).__name__, isinstance(error, HarvesterError), str(error)])
    print(json.dumps({"taken": taken, "raised": raised}), flush=True)
    os._exit(0)


main(Path(sys.argv[1]), Path(sys.argv[2]))
