"""`harvester repair`, and the one line that other commands say where it is needed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner

from harvester.cli.main import app
from harvester.errors import StorageError
from jobs.run.spool.records import Spool
from jobs.storage.folder import StateFolder
from jobs.storage.hold import hold_ledger, repairing
from jobs.testing import ManualClock, ScriptedEngine
from tests.fakes.scripted_job import SLICE_ROWS, harvest, opened, planned, results, spooled_row

OTHER_USER = 65534


@pytest.fixture
async def state(tmp_path: Path) -> StateFolder:
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    ledger = opened(folder.ledger, folder, clock)
    ledger.submit(planned(tmp_path, 2, clock), new=True)
    await harvest(ledger, folder, clock)
    ledger.close()
    return folder


def run(folder: StateFolder, *words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, [*words, "--state", str(folder.root)], env={"HARVESTER_URL": "http://127.0.0.1:9"})
    return done.exit_code, done.output


def test_a_whole_folder_is_said_to_be_whole(state: StateFolder) -> None:
    assert run(state, "repair") == (0, "Jobs in the ledger: 1; it is whole, and so are all of their parts\n")


def test_a_ledger_that_a_process_has_open_is_left_alone(state: StateFolder) -> None:
    """A `RayService` has no server that holds the folder: its ledger is an actor somewhere in the cluster."""
    held, before = hold_ledger(state), state.ledger.read_bytes()
    code, output = run(state, "repair")
    assert (code, state.ledger.read_bytes() == before) == (1, True)
    assert output.startswith(f"error: a process has the ledger of {state.root} open")
    assert "delete the RayService" in output
    assert held is not None
    os.close(held)
    assert run(state, "repair")[0] == 0


def test_a_folder_whose_applications_may_run_in_a_cluster_is_left_alone(state: StateFolder) -> None:
    state.cluster.write_text("10.0.0.1:6379\n")
    before = state.ledger.read_bytes()
    code, output = run(state, "repair")
    assert (code, state.ledger.read_bytes() == before) == (1, True)
    assert output == (
        f"error: applications of {state.root} may run in the Ray cluster at 10.0.0.1:6379, with their ledger; end them with: "
        f"harvester stop --state {state.root}; or, if that cluster is gone, remove {state.cluster}\n"
    )


def test_no_ledger_is_opened_while_it_is_repaired(state: StateFolder) -> None:
    with repairing(state), pytest.raises(StorageError, match=r"harvester repair is at work on .*; it ends by itself"):
        hold_ledger(state)
    for held in (hold_ledger(state), hold_ledger(state)):  # one that takes over may begin before the other has ended
        assert held is not None
        os.close(held)


def test_a_ledger_in_a_database_runs_on_a_machine_without_the_folder(tmp_path: Path) -> None:
    assert hold_ledger(StateFolder(tmp_path / "none")) is None
    assert not (tmp_path / "none").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
def test_what_root_repairs_belongs_to_the_user_of_the_state_folder(state: StateFolder) -> None:
    state.ledger.write_bytes(b"damaged" * 2000)
    for path in (state.root, *state.root.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER)
    assert run(state, "repair")[0] == 0
    assert {path.stat().st_uid for path in (state.root, *state.root.rglob("*"))} == {OTHER_USER}


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may give files away")
@pytest.mark.parametrize("fails", ["at work", "refused"])
def test_what_root_made_before_a_repair_failed_belongs_to_the_user_of_the_state_folder(
    state: StateFolder, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    def refuse(*_: object) -> bool:
        return False

    def repair(folder: StateFolder) -> None:
        (folder.root / "half").touch()
        raise StorageError("no space left on device")

    for path in (state.root, *state.root.rglob("*")):
        os.chown(path, OTHER_USER, OTHER_USER)
    for lock in (state.lock, state.ledger_lock):
        lock.unlink(missing_ok=True)
    if fails == "refused":
        monkeypatch.setattr("jobs.storage.hold._is_locked", refuse)
    else:
        monkeypatch.setattr("harvester.cli.server.repair.repair_folder", repair)
    code, output = run(state, "repair")
    assert code == 1, output
    assert state.ledger_lock.exists()
    assert {path.stat().st_uid for path in state.root.rglob("*")} == {OTHER_USER}


def test_a_lost_ledger_is_named_made_again_and_reported(state: StateFolder) -> None:
    state.ledger.write_bytes(b"damaged" * 2000)
    code, output = run(state, "sql", "select id, rows_ok from jobs")
    assert code == 1
    assert output.startswith(f"error: the ledger {state.ledger} is damaged: ")
    assert output.endswith("; stop the server and run: harvester repair\n")
    code, output = run(state, "repair")
    assert code == 0
    assert f"it lies at {state.ledger}.damaged-1 now" in output
    assert "Restored job docs-0001, paused; go on with: harvester resume docs-0001" in output
    code, output = run(state, "repair", "--json")
    assert (code, json.loads(output)["jobs"], json.loads(output)["restored"]) == (0, 1, [])
    code, output = run(state, "sql", "select rows_ok from jobs", "--json")
    assert json.loads(output) == [{"rows_ok": 2 * SLICE_ROWS}]


@pytest.mark.parametrize("job", ["latest", "docs-0001"])
def test_a_copy_of_results_is_not_made_of_a_damaged_part(state: StateFolder, tmp_path: Path, job: str) -> None:
    copy = tmp_path / "copy.jsonl"
    assert run(state, "results", job, "-o", str(copy))[0] == 0
    assert copy.stat().st_mode & 0o777 == 0o644, "the user's own umask"
    copy.unlink()
    part = state.results("docs-0001") / "part-000001.parquet"
    data = bytearray(part.read_bytes())
    data[60] ^= 4
    part.write_bytes(data)
    code, output = run(state, "results", job, "-o", str(copy))
    assert (code, copy.exists()) == (1, False)
    assert output.startswith(f"error: the part {part} is damaged: ")
    assert output.endswith("; stop the server and run: harvester repair\n")


@pytest.mark.parametrize(("first", "rows"), [("ledger", 2 * SLICE_ROWS), ("jobs", 0)])
async def test_a_copy_that_was_made_while_a_server_worked_is_made_to_agree_with_its_parts(tmp_path: Path, first: str, rows: int) -> None:
    """One half of the copy is from before the work, the other from after it."""
    clock, folder, copy = ManualClock(), StateFolder(tmp_path / "state"), StateFolder(tmp_path / "copy")
    folder.prepare()
    ledger = opened(folder.ledger, folder, clock)
    ledger.submit(planned(tmp_path, 2, clock), new=True)

    def some(wanted: bool) -> None:
        def left_out(where: str, names: list[str]) -> list[str]:
            return [name for name in names if Path(where) == folder.root and name.startswith(first) is not wanted]

        shutil.copytree(folder.root, copy.root, ignore=left_out, dirs_exist_ok=True)

    some(True)
    await harvest(ledger, folder, clock)
    some(False)
    ledger.close()
    code, output = run(copy, "repair")
    assert code == 0, output
    assert json.loads(run(copy, "sql", "select rows_ok from jobs", "--json")[1]) == [{"rows_ok": rows}]
    assert run(copy, "repair")[1] == "Jobs in the ledger: 1; it is whole, and so are all of their parts\n"


async def test_rows_of_a_split_that_the_copied_ledger_lacks_are_in_the_results_once(tmp_path: Path) -> None:
    """The ledger was copied before the split, the parts after it: the rows split off would be in their own part and in the slice's."""
    clock, folder, copy = ManualClock(), StateFolder(tmp_path / "state"), StateFolder(tmp_path / "copy")
    folder.prepare()
    ledger = opened(folder.ledger, folder, clock)
    plan = planned(tmp_path, 2, clock)
    ledger.submit(plan, new=True)
    copy.root.mkdir()
    for path in (*folder.root.glob("ledger*"), folder.root / "VERSION"):
        shutil.copy2(path, copy.root)
    lease = ledger.lease("b", "scripted", clock())
    assert lease is not None
    assert ledger.split(lease.lease_id, 3)
    ledger.release(lease.lease_id, clock())
    await harvest(ledger, folder, clock)
    ledger.close()
    shutil.copytree(folder.jobs, copy.jobs)
    aside = [copy.results(plan.spec.id) / f"part-{number:06d}.parquet.damaged" for number in (2, 0)]
    assert [line for line in run(copy, "repair")[1].splitlines() if "put aside" in line] == [
        f"A part that is damaged or fits no slice was put aside as {path}" for path in aside
    ]
    again = opened(copy.ledger, copy, clock)
    engine = ScriptedEngine()
    await harvest(again, copy, clock, engine)
    again.check()
    again.close()
    assert engine.calls == SLICE_ROWS
    assert [row["row_id"] for row in results(copy, plan.spec.id)] == [*range(2 * SLICE_ROWS)]


async def test_a_slice_takes_no_rows_of_another_that_a_lost_split_gave_its_id(tmp_path: Path) -> None:
    """What a failover of a database that lost a split leaves: the next split gives its id to other rows, and to as many."""
    clock, folder = ManualClock(), StateFolder(tmp_path / "state")
    folder.prepare()
    plan = planned(tmp_path, 3, clock)
    for split_off in (0, 1):  # the second ledger does not know of the first one's split
        ledger = opened(Path(":memory:"), folder, clock)
        ledger.submit(plan, new=True)
        leases = [ledger.lease("b", "scripted", clock()) for _ in plan.slices]
        lease = leases[split_off]
        assert lease is not None
        assert ledger.split(lease.lease_id, 3)
        for one in leases:
            assert one is not None
            ledger.release(one.lease_id, clock())
        await harvest(ledger, folder, clock)
        ledger.check()
        ledger.close()
        spool = Spool(folder.spool(plan.spec.id, len(plan.slices), 0))
        for row_id in range(3, SLICE_ROWS):
            spool.finish(spooled_row(row_id))
        spool.close()
    assert [row["row_id"] for row in results(folder, plan.spec.id)] == [*range(3 * SLICE_ROWS)]


def test_it_waits_for_nobody_while_a_server_holds_the_folder(state: StateFolder) -> None:
    with state.locked():
        code, output = run(state, "repair")
    assert (code, output.splitlines()) == (
        1,
        [f"error: a server is running on state folder {state.root} already; stop it with: harvester stop --state {state.root}"],
    )


def test_a_folder_of_a_newer_version_is_left_alone(state: StateFolder) -> None:
    (state.root / "VERSION").write_text('{"version": 3}')
    code, output = run(state, "repair")
    assert code == 1
    assert "is of version 3, this harvester writes version 2; give a new folder with --state, or run the version that made it" in output


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert run(StateFolder(tmp_path / "none"), "repair")[1].startswith(f"error: there is no state folder {tmp_path / 'none'}; ")
