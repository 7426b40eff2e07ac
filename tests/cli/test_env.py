"""`harvester env`: what the nodes of a cluster are told."""

from __future__ import annotations

import json
import subprocess

from typer.testing import CliRunner

from harvester.cli.main import app


def test_a_shell_takes_over_what_json_says() -> None:
    runner = CliRunner()
    told = json.loads(runner.invoke(app, ["env", "--json"]).output)
    assert told["RAY_worker_niceness"] == "0"
    script = runner.invoke(app, ["env"]).output + "env -0"
    lines = subprocess.run(["sh", "-c", script], env={"PATH": "/usr/bin:/bin"}, capture_output=True, text=True, check=True).stdout
    found = dict(line.split("=", 1) for line in lines.split("\0") if line)
    assert told.items() <= found.items()
