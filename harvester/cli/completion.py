"""Shell completion of job ids and task names. Fast, and silent on errors."""

from __future__ import annotations

import os
from pathlib import Path

from harvester.client_environment import default_state_dir
from jobs.storage.folder import StateFolder


def job_ids(incomplete: str) -> list[str]:
    """Job ids from the state folder, newest first. Asks no server: completion must be fast."""
    given = os.environ.get("HARVESTER_STATE")
    try:
        folder = StateFolder(Path(given).expanduser() if given else default_state_dir()).jobs
        found = [(path.stat().st_mtime, path.name) for path in folder.glob("[!.]*") if path.is_dir()]
    except (OSError, RuntimeError):
        found = []
    names = ["latest", *(name for _, name in sorted(found, reverse=True))]
    return [name for name in names if name.startswith(incomplete)]


def task_names(incomplete: str) -> list[tuple[str, str]]:
    """Built-in tasks with their descriptions. The shell completes paths by itself."""
    from jobs.tasks.load import list_tasks  # only here: it loads table libraries, and commands import this module

    return [(task.name, task.description) for task in list_tasks() if task.name.startswith(incomplete)]
