"""`harvester profile`: what it asks the server for, and what it tells."""

from __future__ import annotations

import json

FOUND = {
    "seconds": 41.2,
    "probes": 30,
    "steps": 812,
    "ready": True,
    "ratio_p50": 0.99,
    "ratio_p99": 1.42,
    "kv_copy": {"store_s": 0.000012, "load_s": 0.000015, "block_bytes": 131072.0},
    "path": "/state/profiles/tiny-0123456789.json",
}


def test_the_server_is_asked_to_measure_for_as_long_as_was_said(cli, server):
    server.answers["/api/profile"] = (200, FOUND)
    result = cli("profile", "--seconds", "12")
    assert result.exit_code == 0, result.output
    assert ("POST", "/api/profile", {"seconds": 12.0}) in server.asked
    assert "812 steps of 30 probes in 41 s" in result.output
    assert "p50 0.99, p99 1.42" in result.output
    assert "KV block of 128 KiB: 12 us to host memory, 15 us back" in result.output
    assert FOUND["path"] in result.output


def test_json_is_the_servers_answer(cli, server):
    server.answers["/api/profile"] = (200, FOUND)
    assert json.loads(cli("profile", "--json").output) == FOUND


def test_without_a_server_the_exit_code_says_so(cli):
    result = cli("profile", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 3
    assert "harvester serve" in result.output
