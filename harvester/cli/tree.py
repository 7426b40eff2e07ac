"""The commands by name: where each lies, and its line in the list. A command's module is loaded when it is asked for."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping
from typing import Any

import typer.main

from harvester.program import ending_at_once

PLACES: dict[str, tuple[str, str]] = {
    "serve": ("server.serve", "Serve chat and batch jobs, until Ctrl-C."),
    "stop": ("server.serve", "Stop the server; its jobs continue with the next."),
    "submit": ("job.commands", "Make a job of a table."),
    "jobs": ("job.status", "List jobs, newest first. Works without a server too."),
    "show": ("job.status", "Show state, progress and errors of a job."),
    "watch": ("job.status", "Watch jobs until they have ended. Exits with 1 if one failed."),
    "cancel": ("job.status", "Cancel a job. Finished rows stay in its results."),
    "pause": ("job.status", "Pause a job."),
    "resume": ("job.status", "Resume a paused, cancelled, expired or failed job."),
    "retry": ("job.status", "Compute the failed rows of a job again."),
    "rm": ("job.status", "Remove an ended job with its results."),
    "results": ("job.results", "Print a job's results, or write them to a file."),
    "sql": ("job.results", "Query jobs, results and files with SQL."),
    "chat": ("chat", "Chat with the served model."),
    "tasks": ("tasks", "List the built-in tasks, or print one."),
    "key": ("server.key", "Make, list or revoke API keys. A running server follows at once."),
    "scale": ("server.scale", "Have the running server use another number of replicas."),
    "profile": ("server.profile", "Measure the running engine: step times and KV copies."),
    "doctor": ("server.doctor", "Check what a server needs on this machine."),
    "env": ("server.env", "Print the variables that the nodes of a Ray cluster should have."),
    "verify": ("server.verify", "Check tokens, ended steps, times and KV copies on this machine."),
    "repair": ("server.repair", "Check the state folder and mend its ledger."),
}


class Commands(Mapping[str, Any]):
    """Maps each name in `PLACES` to its command, loaded on access."""

    def __getitem__(self, name: str) -> Any:
        with ending_at_once():
            module = importlib.import_module(f"harvester.cli.{PLACES[name][0]}")
        return typer.main.get_group(module.app).commands[name]

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)
