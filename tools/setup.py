"""Make `.venv`: the locked packages for this machine's engine, and harvester itself in editable form.

    python3.11 tools/setup.py

Standard library only. A set-up that finished leaves a stamp named after what went into it, so the next one returns at once; one that
was killed half-way leaves a mark instead, and the next one starts from an empty `.venv`. `HARVESTER_DEVICE=cpu|cuda` overrides what
the machine is seen to have.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# In an activated .venv, the Python behind it; read at once, since that .venv may be removed below.
BASE_PYTHON = Path(sys.executable).resolve()
LOG = VENV / "setup.log"
UNFINISHED = VENV / ".setup-unfinished"
LOG_TAIL_LINES = 20
NO_CPU_TORCH = """\
setup: PyTorch's CPU build (the version marked +cpu in requirements/cpu.lock) is in none of the places that pip looks in, or was built for
setup: another Python than the lock's 3.11. Name a folder or index that holds it: PIP_FIND_LINKS=FOLDER or PIP_EXTRA_INDEX_URL=INDEX"""


class SetupError(Exception):
    """Set-up cannot go on. The message is for the person who typed `make setup`."""


def say(text: str) -> None:
    sys.stdout.write(f"setup: {text}\n")
    sys.stdout.flush()


def device() -> str:
    """``cuda`` where a GPU answers, else ``cpu``; HARVESTER_DEVICE overrides."""
    given = os.environ.get("HARVESTER_DEVICE")
    if given in ("cpu", "cuda"):
        return given
    if given:
        raise SetupError(f"HARVESTER_DEVICE={given} is not known; give cpu or cuda, or leave it out")
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return "cpu"
    return "cuda" if listing.returncode == 0 and "GPU " in listing.stdout else "cpu"


def stamp(lock: Path) -> Path:
    """The file that says that `.venv` holds exactly this lock and this project file."""
    inputs = hashlib.sha256()
    for path in (lock, ROOT / "pyproject.toml"):
        inputs.update(path.read_bytes())
    return VENV / f".setup-{lock.stem}-{inputs.hexdigest()[:12]}"


@contextmanager
def alone() -> Iterator[None]:
    """Hold the set-up lock, so that two set-ups at once run one after the other."""
    guard = ROOT / ".cache" / "setup.lock"
    guard.parent.mkdir(exist_ok=True)
    with guard.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def works(*command: str) -> bool:
    try:
        return subprocess.run([PYTHON, *command], capture_output=True).returncode == 0
    except OSError:
        return False


def make_venv() -> None:
    """Leave a working `.venv`: the present one if it is whole and no set-up was killed in it, else an empty new one."""
    whole = works("-c", "import sys; sys.exit(sys.version_info < (3, 11))") and works("-m", "pip", "--version")
    if whole and not UNFINISHED.exists():
        return
    if VENV.exists():
        say("the last set-up did not finish; starting again with an empty .venv")
        shutil.rmtree(VENV)
    made = subprocess.run([BASE_PYTHON, "-m", "venv", VENV], capture_output=True, text=True)
    if made.returncode != 0:
        detail = (made.stdout + made.stderr).strip()
        raise SetupError(f"{BASE_PYTHON} cannot make a virtual environment; is its venv package installed?\n{detail}")


def pip(*arguments: str | Path) -> None:
    """Run pip with its talk in the log. Raises `SetupError` with the end of that log."""
    command = [PYTHON, "-m", "pip", "install", "--no-input", "--progress-bar", "off", "--no-deps", *arguments]
    with LOG.open("a", encoding="utf-8") as log:
        code = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT).returncode
    if code == 0:
        return
    lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines()
    tail = "\n".join(line[:300] for line in lines[-LOG_TAIL_LINES:])
    hint = f"\n{NO_CPU_TORCH}" if any("No matching distribution found for torch==" in line for line in lines) else ""
    raise SetupError(f"pip failed with exit code {code}; the end of {LOG.relative_to(ROOT)}:\n{tail}{hint}")


def install(lock: Path, done: Path) -> None:
    make_venv()
    UNFINISHED.touch()
    for old in (*VENV.glob(".setup-cpu-*"), *VENV.glob(".setup-cuda-*")):
        old.unlink()
    LOG.unlink(missing_ok=True)
    pip("--require-hashes", "-r", lock)
    pip("--no-build-isolation", "-e", ROOT)
    if not works("-c", "import connectors, duckdb, harvester, jobs, pyarrow"):
        raise SetupError(f"the packages are installed and cannot be imported; remove {VENV} and run make setup again")
    done.touch()
    UNFINISHED.unlink()


def main() -> int:
    started_s = time.monotonic()
    try:
        engine = device()
        lock = ROOT / "requirements" / f"{engine}.lock"
        done = stamp(lock)
        with alone():
            if done.exists() and PYTHON.exists() and not UNFINISHED.exists():
                say(f".venv is up to date ({engine} engine)")
                return 0
            say(f"installing the {engine} engine into .venv; a few minutes the first time, log in {LOG.relative_to(ROOT)}")
            install(lock, done)
    except SetupError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    say(f"ready in {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
