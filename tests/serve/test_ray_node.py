"""The Ray node that a server starts for itself."""

from __future__ import annotations

import pytest

from harvester.serve.processes import marked
from tests.real_server import RealServer, line_of

pytestmark = pytest.mark.serve


def test_nothing_of_ray_runs_that_the_server_does_not_use(server: RealServer) -> None:
    lines = [line_of(process) for process in marked(server.mark)]
    assert any("raylet" in line for line in lines)
    unused = ("dashboard/dashboard.py", "autoscaler/_private/monitor.py", "log_monitor.py")
    assert [line for line in lines if any(name in line for name in unused)] == []
