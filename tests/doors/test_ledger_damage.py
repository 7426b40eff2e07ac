"""A ledger that was cut, flipped, replaced or removed: it is named, and `repair` makes it again with every row that was done."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from connectors.errors import DamageError
from connectors.parquet.parts import PartsSink
from jobs.ledger.ledger import Ledger
from jobs.ledger.store.place import read_ledger
from jobs.repair.repair import repair
from jobs.spec import PartStats
from jobs.states import JobState
from jobs.storage.folder import StateFolder, part_name
from jobs.testing import ManualClock, ScriptedEngine
from tests.fakes.scripted_job import SLICE_ROWS, harvest, opened, planned, results

SLICES = 3
NAMED = "; stop the server and run: harvester repair"


class Site:
    """A state folder with one job that is done and one that is paused with one slice done."""

    def __init__(self, folder: Path) -> None:
        self.clock = ManualClock()
        self.folder = StateFolder(folder / "state")
        self.folder.prepare()
        self.log = self.folder.ledger.with_name("ledger.sqlite-wal")
        self.count = self.folder.ledger.with_suffix(".commits")
        self.done = planned(folder, SLICES, self.clock, "done")
        self.half = planned(folder, SLICES, self.clock, "half")

    def open(self) -> Ledger:
        return opened(self.folder.ledger, self.folder, self.clock)

    async def work(self) -> None:
        ledger = self.open()
        ledger.submit(self.done, new=True)
        await harvest(ledger, self.folder, self.clock)
        ledger.submit(self.half, new=True)
        lease = ledger.lease("a", "scripted", self.clock())
        assert lease is not None
        shutil.copy(self._part(self.done.spec.id, 0), self._part(self.half.spec.id, 0))
        stats = PartsSink(self.folder.results(self.half.spec.id)).metadata(part_name(0))
        assert stats is not None
        ledger.commit(lease.lease_id, self.half.spec.id, 0, PartStats.model_validate_json(stats["harvester_part"]), self.clock())
        ledger.pause(self.half.spec.id, self.clock())
        # As a killed server leaves it: closing would write the log into the file.
        kept = self.files()
        ledger.close()
        self.put_back(kept)

    def files(self) -> dict[Path, bytes]:
        return {path: path.read_bytes() for path in self.folder.root.glob("ledger.*")}

    def put_back(self, kept: dict[Path, bytes]) -> None:
        for path in self.folder.root.glob("ledger.*"):
            path.unlink()
        for path, whole in kept.items():
            path.write_bytes(whole)

    def _part(self, job_id: str, slice_id: int) -> Path:
        folder = self.folder.results(job_id)
        folder.mkdir(parents=True, exist_ok=True)
        return PartsSink(folder).path(part_name(slice_id))

    async def check_whole(self) -> None:
        """Both jobs are there, no row is computed that was done, and every row is right in the end."""
        ledger = self.open()
        ledger.check()
        assert {view.id for view in ledger.jobs()} == {self.done.spec.id, self.half.spec.id}
        assert ledger.show(self.done.spec.id).state is JobState.COMPLETED
        half = ledger.show(self.half.spec.id)
        assert (half.state, half.rows_ok) == (JobState.PAUSED, SLICE_ROWS)
        ledger.resume(self.half.spec.id, self.clock())
        engine = ScriptedEngine()
        await harvest(ledger, self.folder, self.clock, engine)
        ledger.check()
        ledger.close()
        assert engine.calls == (SLICES - 1) * SLICE_ROWS
        for plan in (self.done, self.half):
            assert [row["output"] for row in results(self.folder, plan.spec.id)] == [f"text {i}" for i in range(SLICES * SLICE_ROWS)]


@pytest.fixture
async def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    await site.work()
    return site


async def test_a_whole_ledger_opens_as_a_killed_server_left_it(site: Site) -> None:
    report = repair(site.folder)
    assert (report.changes_lost, report.restored, report.slices_found, report.slices_open) == (0, [], 0, 0)
    await site.check_whole()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.95], ids=lambda share: f"{share:.0%}")
async def test_a_log_cut_short_is_noticed_and_repaired(site: Site, share: float) -> None:
    whole = site.log.read_bytes()
    site.log.write_bytes(whole[: int(share * len(whole))])
    with pytest.raises(DamageError, match=rf"the ledger .* lacks its last \d+ changes: .*{NAMED}"):
        site.open()
    with pytest.raises(DamageError, match=NAMED):
        read_ledger(site.folder.root, "jobs")
    report = repair(site.folder)
    assert report.changes_lost is None or report.changes_lost > 0
    await site.check_whole()


async def test_a_removed_ledger_is_noticed_and_made_again(site: Site) -> None:
    for path in (site.folder.ledger, site.log):
        path.unlink()
    with pytest.raises(DamageError, match=NAMED):
        site.open()
    report = repair(site.folder)
    assert sorted(report.restored) == sorted([site.done.spec.id, site.half.spec.id])
    assert report.slices_found == SLICES + 1
    await site.check_whole()


async def test_a_file_of_nothing_in_its_place_is_damage_and_not_another_server(site: Site) -> None:
    site.folder.ledger.write_bytes(b"nothing that SQLite could read" * 1000)
    with pytest.raises(DamageError, match=rf"the ledger .*/ledger.sqlite is damaged: .*{NAMED}"):
        site.open()
    report = repair(site.folder)
    assert report.ledger_aside is not None
    assert report.ledger_aside.exists()
    await site.check_whole()


async def test_a_damaged_count_of_changes_is_named(site: Site) -> None:
    site.count.write_bytes(site.count.read_bytes().replace(b"0", b"8", 1))
    with pytest.raises(DamageError, match=rf"ledger.commits is damaged, .*{NAMED}"):
        site.open()
    assert repair(site.folder).changes_lost is None
    await site.check_whole()


@pytest.mark.parametrize("target", ["ledger", "log"])
async def test_a_flipped_bit_anywhere_is_noticed_or_changes_nothing(site: Site, target: str) -> None:
    chance = random.Random(20)
    path = site.folder.ledger if target == "ledger" else site.log
    if target == "ledger":
        site.open().close()  # which copies the log into it
    kept = site.files()
    before = _state(site)
    site.put_back(kept)
    for _ in range(40):
        data = bytearray(kept[path])
        bit = chance.randrange(8 * len(data))
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        try:
            assert _state(site) == before, f"bit {bit} of {path.name}"
        except DamageError:
            repair(site.folder)
            assert {job["id"] for job in _state(site)[0]} == {job["id"] for job in before[0]}
        site.put_back(kept)
    await site.check_whole()


def _state(site: Site) -> list[list[dict[str, object]]]:
    """Jobs and slices."""
    ledger = site.open()
    try:
        return [ledger.table(name).to_pylist() for name in ("jobs", "leases")]
    finally:
        ledger.close()
