"""What the processes below a server took while somebody looked."""

from __future__ import annotations

import os
from collections.abc import Mapping

from bench.harness.measure.peak import Below, Taken

Look = tuple[Taken, Mapping[int, Taken]]


def watched(*looks: Look) -> Below:
    left = iter(looks)
    below = Below(lambda: next(left))
    for _ in looks[1:]:
        below.look()
    return below


def test_the_processes_of_a_server_are_added_up_at_each_look() -> None:
    below = watched((Taken(100, 0.0), {1: Taken(10, 0.0), 2: Taken(10, 0.0)}), (Taken(90, 1.0), {1: Taken(40, 3.0), 2: Taken(20, 0.5)}))
    assert (below.one_bytes, below.bytes, below.whole_bytes) == (40, 60, 150)
    assert (below.cpu_s, below.server_cpu_s) == (3.5, 1.0)


def test_processor_time_counts_from_the_first_look_and_of_those_that_came_later_or_ended() -> None:
    below = watched(
        (Taken(1, 5.0), {1: Taken(1, 7.0)}),
        (Taken(1, 6.0), {1: Taken(1, 9.0), 2: Taken(1, 1.0)}),
        (Taken(1, 6.0), {3: Taken(1, 0.5)}),
    )
    assert below.cpu_s == 2.0 + 1.0 + 0.5
    assert below.server_cpu_s == 1.0


def test_a_look_at_a_real_process_finds_this_one() -> None:
    below = Below.of(os.getpid())
    assert below.whole_bytes > 0
    assert below.server_cpu_s == 0.0
