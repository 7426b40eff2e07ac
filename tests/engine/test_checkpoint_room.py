"""How much host memory checkpoints may take: what the machine and its control groups give, at start and as they grow."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from harvester.engine.checkpoints.budget import transfer_config
from harvester.engine.checkpoints.worker.growth import RETRY_S, STEP_BYTES, Growth
from harvester.engine.checkpoints.worker.room import GIB, Room, memory_room
from harvester.errors import ConfigError
from harvester.model_config import CheckpointConfig
from harvester.policy.kv.hostpool import HostPool

MIB = 1 << 20


def machine(root: Path, own: str, files: dict[str, dict[str, str]]) -> Path:
    """A machine with 2 TiB. ``own``: this process's control groups; ``files``: of groups, by folder below ``sys/fs/cgroup``."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text(f"MemTotal: {2048 << 20} kB\nMemFree: 1 kB\nMemAvailable: {2000 << 20} kB\n")
    (root / "proc/self/cgroup").write_text(own)
    for folder, found in files.items():
        place = root / "sys/fs/cgroup" / folder
        place.mkdir(parents=True, exist_ok=True)
        for name, text in found.items():
            (place / name).write_text(text)
    return root


def second(limit: int | None, used: int, cache: int = 0) -> dict[str, str]:
    given = "max" if limit is None else str(limit)
    return {"memory.max": given + "\n", "memory.current": f"{used}\n", "memory.stat": f"anon 1\ninactive_file {cache}\n"}


def first(limit: int, used: int, cache: int = 0) -> dict[str, str]:
    stat = f"cache 9\ntotal_inactive_file {cache}\n"
    return {"memory.limit_in_bytes": f"{limit}\n", "memory.usage_in_bytes": f"{used}\n", "memory.stat": stat}


def test_without_control_groups_it_is_what_the_machine_has(tmp_path: Path) -> None:
    assert memory_room(machine(tmp_path, "0::/\n", {})) == Room(2000 * GIB, 2048 * GIB, "memory of the machine")


def test_a_limit_of_the_control_group_is_the_bound_less_what_is_used_but_for_cached_files(tmp_path: Path) -> None:
    found = memory_room(machine(tmp_path, "0::/\n", {"": second(16 * GIB, 12 * GIB, cache=8 * GIB)}))
    assert (found.free_bytes, found.total_bytes) == (12 * GIB, 16 * GIB)
    assert "memory limit of the control group" in found.bound


def test_an_outer_group_may_be_tighter_than_the_inner_one(tmp_path: Path) -> None:
    groups = {"pods": second(6 * GIB, 5 * GIB), "pods/one": second(8 * GIB, GIB), "": second(None, 0)}
    found = memory_room(machine(tmp_path, "0::/pods/one\n", groups))
    assert found.free_bytes == GIB
    assert found.bound.endswith("/sys/fs/cgroup/pods")


def test_control_groups_of_the_first_version_count_too_and_their_number_for_no_limit_does_not(tmp_path: Path) -> None:
    groups = {"memory": first(9223372036854771712, 0), "memory/docker/x": first(4 * GIB, 3 * GIB, cache=GIB)}
    found = memory_room(machine(tmp_path, "5:cpu:/docker/x\n4:memory:/docker/x\n0::/\n", groups))
    assert (found.free_bytes, found.total_bytes) == (2 * GIB, 4 * GIB)


@pytest.mark.parametrize("path", ["/docker/elsewhere", "/../other"], ids=["of the host", "of a namespace outside"])
def test_in_a_container_that_sees_its_own_group_as_the_root_that_one_counts(tmp_path: Path, path: str) -> None:
    assert memory_room(machine(tmp_path, f"0::{path}\n", {"": second(8 * GIB, GIB)})).free_bytes == 7 * GIB


def test_a_group_that_uses_more_than_its_limit_has_no_room(tmp_path: Path) -> None:
    assert memory_room(machine(tmp_path, "0::/\n", {"": second(GIB, 2 * GIB)})).free_bytes == 0


def test_this_machine_has_some() -> None:
    found = memory_room()
    assert 0 < found.free_bytes <= found.total_bytes


def test_the_budget_is_a_quarter_of_the_tightest_bound_and_one_line_names_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    room = memory_room(machine(tmp_path, "0::/\n", {"": second(16 * GIB, 0)}))
    with caplog.at_level(logging.INFO, "harvester"):
        given = transfer_config(CheckpointConfig(enabled=True), 2, room)
    assert given is not None
    assert given["kv_connector_extra_config"]["cpu_bytes_to_use"] == 2 * GIB
    (line,) = caplog.messages
    assert "up to 2.00 GiB of host memory a replica" in line
    assert "16.0 of 16.0 GiB free, memory limit of the control group" in line


def test_where_hardly_any_memory_is_left_checkpoints_are_off_and_one_line_says_what_to_do(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "harvester"):
        assert transfer_config(CheckpointConfig(enabled=True), 1, Room(GIB // 2, 4 * GIB, "memory of the machine")) is None
    (line,) = caplog.messages
    assert line.startswith("KV checkpoints are off")
    assert "give more memory or checkpoint.host_gib" in line


def test_a_configured_budget_over_a_limit_of_the_control_group_is_refused(tmp_path: Path) -> None:
    room = memory_room(machine(tmp_path, "0::/\n", {"": second(4 * GIB, 0)}))
    with pytest.raises(ConfigError, match=r"host_gib=4 .* 4\.0 GiB that are free \(memory limit of the control group .* at most 3\.6"):
        transfer_config(CheckpointConfig(enabled=True, host_gib=4.0), 1, room)


class Machine:
    """Memory that a pool of 1 MiB slots grows into."""

    def __init__(self, free_mib: int, slots: int = 4096) -> None:
        self.free_mib = free_mib
        self.pool: HostPool[bytes] = HostPool(slots)
        self.asked = 0
        self.now_s = 0.0
        self.growth = Growth(self.pool, MIB, self.room, lambda: self.now_s)
        self.count = 0

    def room(self) -> Room:
        self.asked += 1
        return Room((self.free_mib - self.pool.used) * MIB, 1000 * MIB, "a test")

    def store(self, slots: int) -> dict[bytes, int] | None:
        self.growth.prepare(slots)
        self.count += 1
        found = self.pool.store(str(self.count), [f"{self.count} {number}".encode() for number in range(slots)])
        if found is not None:
            self.pool.stored(found.values())
        self.pool.check()
        return found


def test_memory_is_asked_for_in_steps_not_for_each_block() -> None:
    one = Machine(4000)
    for _ in range(100):
        assert one.store(10) is not None
    assert one.asked == -(-1000 * MIB // STEP_BYTES)


def test_where_memory_is_short_old_checkpoints_are_given_up_and_one_line_says_so(caplog: pytest.LogCaptureFixture) -> None:
    one = Machine(600)
    with caplog.at_level(logging.WARNING):
        for _ in range(100):
            assert one.store(10) is not None
    assert one.pool.used <= 550, "a twentieth of all memory is left"
    assert one.pool.used == one.pool.capacity == 2 * (STEP_BYTES // MIB)
    assert one.pool.evicted == 1000 - one.pool.used
    assert max(one.pool._slots) < 2 * (STEP_BYTES // MIB), "no slot beyond what there is memory for"
    assert len(caplog.messages) == 1


def test_growth_goes_on_when_there_is_memory_again_and_is_not_asked_for_all_the_time() -> None:
    one = Machine(300)
    for _ in range(50):
        one.store(10)
    asked, held = one.asked, one.pool.used
    one.free_mib = 4000
    one.store(10)
    assert (one.asked, one.pool.used) == (asked, held)
    one.now_s += RETRY_S
    for _ in range(50):
        one.store(10)
    assert one.pool.used > held
    assert one.pool.withheld == 0


def test_with_no_memory_at_all_nothing_is_stored() -> None:
    one = Machine(10)
    assert one.store(1) is None
    assert one.pool.capacity == 0
    assert one.pool.room([], 1) == 0
