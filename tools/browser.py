"""Have a Chromium for the browser tests: the one that is there, else Debian's package.

    python tools/browser.py

Standard library only. It never fails: where no Chromium can be had, it says so, and the tests that need one are skipped with that reason.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

NAMES = ("chromium", "chromium-browser", "google-chrome")
WAIT_S = 600


def find() -> str | None:
    """Path of a Chromium: ``HARVESTER_CHROMIUM``, else the first on the path."""
    given = os.environ.get("HARVESTER_CHROMIUM")
    return given or next((path for name in NAMES if (path := shutil.which(name))), None)


def lack() -> str | None:
    """Why it cannot be installed here; None where it can."""
    if shutil.which("apt-get") is None:
        return "there is no apt-get"
    return None if os.geteuid() == 0 else "installing needs root"


def install(package: str = "chromium") -> str | None:
    """Install a package of Debian's. Returns why that failed, in one line."""
    quiet = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "-q", "update"], ["apt-get", "-q", "install", "-y", "--no-install-recommends", package]):
        try:
            done = subprocess.run(command, capture_output=True, text=True, env=quiet, timeout=WAIT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["apt-get failed"])[-1]


def main() -> int:
    found = find()
    if found is None:
        why = lack()
        if why is None:
            sys.stdout.write("browser: installing Debian's chromium for the tests of the page\n")
            sys.stdout.flush()
            why = install()
        found = find()
        if found is None:
            sys.stdout.write(f"browser: no Chromium here, the tests of the page are skipped ({why}); install chromium to run them\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
