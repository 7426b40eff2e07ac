"""`harvester scale`: what it asks the server for, and what it tells."""

from __future__ import annotations

import json

import pytest


def test_the_server_is_asked_for_so_many_replicas(cli, server):
    server.answers["/api/scale"] = (200, {"replicas": 3, "was": 1})
    result = cli("scale", "3")
    assert result.exit_code == 0, result.output
    assert ("POST", "/api/scale", {"replicas": 3, "model": None}) in server.asked
    assert result.output == "3 replica(s), 1 before; until the server is started again\n"
    assert json.loads(cli("scale", "3", "--json").output) == {"replicas": 3, "was": 1}


@pytest.mark.parametrize("number", ["0", "-1", "two"])
def test_what_is_no_number_of_replicas_is_refused(cli, server, number):
    assert cli("scale", "--", number).exit_code == 2
    assert not [path for _, path, _ in server.asked if path == "/api/scale"]
