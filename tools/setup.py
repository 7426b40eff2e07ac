"""Make `.venv`: the locked packages for this machine's engine, and harvester itself in editable form.

    python3.11 tools/setup.py

Standard library only. A set-up that finished leaves a stamp named after what went into it, so the next one returns at once; one that
was killed half-way leaves a mark instead, and the next one starts from an empty `.venv`. `HARVESTER_DEVICE=cpu|cuda` overrides what
the machine is seen to have: an image for GPU machines is built with cuda on any machine.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
# In an activated .venv, the Python behind it; read at once, since that .venv may be removed below.
BASE_PYTHON = Path(sys.executable).resolve()
LOG = VENV / "setup.log"
UNFINISHED = VENV / ".setup-unfinished"
LOG_TAIL_LINES = 20
PYTHONS = {"cpu": ("3.11",), "cuda": ("3.11", "3.12")}  # that each lock was resolved for
# The driver's own lists of GPUs. The second covers the whole host, whatever a container may use of it.
DEVICE_FILES, DRIVER_GPUS = Path("/dev"), Path("/proc/driver/nvidia/gpus")
# PyTorch for the cpu engine, where no index that pip knows has its CPU build: the same release, with what it cannot be loaded without.
GENERAL_TORCH = ROOT / "requirements" / "torch-general.lock"
GENERAL_TORCH_SAYS = """\
no index that pip knows has PyTorch's CPU build (200 MB), so its general build is taken: 2.4 GB to download, 4 GB on disk. It works as
setup: well, and takes longer. For the small one, name an index or folder that has it: PIP_EXTRA_INDEX_URL=INDEX or PIP_FIND_LINKS=FOLDER"""


class SetupError(Exception):
    """Set-up cannot go on. The message is for the person who typed `make setup`."""


def say(text: str) -> None:
    sys.stdout.write(f"setup: {text}\n")
    sys.stdout.flush()


class Device(NamedTuple):
    """The engine to install, ``cpu`` or ``cuda``, and the reason for it."""

    engine: str
    why: str


def device() -> Device:
    """HARVESTER_DEVICE; else ``cuda`` where a GPU is seen, ``cpu`` elsewhere. Raises `SetupError` for an unknown HARVESTER_DEVICE."""
    given = os.environ.get("HARVESTER_DEVICE")
    if given in PYTHONS:
        return Device(given, "HARVESTER_DEVICE says so")
    if given:
        raise SetupError(f"HARVESTER_DEVICE={given} is not known; give cpu or cuda, or leave it out")
    found = listed() or seen()
    other = "cpu" if found.engine == "cuda" else "cuda"
    return found._replace(why=f"{found.why}; for the other one: HARVESTER_DEVICE={other} make setup")


def listed() -> Device | None:
    """What nvidia-smi says; None where it is missing, as in many containers, or fails."""
    try:
        listing = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    if listing.returncode != 0:
        return None
    return Device("cuda", "nvidia-smi lists a GPU") if "GPU " in listing.stdout else Device("cpu", "nvidia-smi lists no GPU")


def seen() -> Device:
    """What the driver's files say. NVIDIA_VISIBLE_DEVICES is no proof of a GPU: CUDA images set it on any machine.

    With the value void or none it hides the host's GPUs.
    """
    if any(DEVICE_FILES.glob("nvidia[0-9]*")):
        return Device("cuda", f"{DEVICE_FILES} has an NVIDIA GPU")
    visible = os.environ.get("NVIDIA_VISIBLE_DEVICES", "")
    if visible not in ("void", "none") and DRIVER_GPUS.is_dir() and any(DRIVER_GPUS.iterdir()):
        return Device("cuda", f"{DRIVER_GPUS} lists a GPU")
    alone = f" (NVIDIA_VISIBLE_DEVICES={visible} alone shows none)" if visible else ""
    return Device("cpu", f"no NVIDIA GPU is seen{alone}")


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


def usable(engine: str) -> bool:
    """Whether `.venv` can take ``engine``'s packages: whole, of a Python that its lock is for, and without another engine's packages."""
    asked = f"import sys; sys.exit('%d.%d' % sys.version_info[:2] not in {PYTHONS[engine]!r})"
    whole = works("-c", asked) and works("-m", "pip", "--version") and not UNFINISHED.exists()
    return whole and not [stamp for other in PYTHONS if other != engine for stamp in VENV.glob(f".setup-{other}-*")]


def make_venv(engine: str) -> None:
    """Leave a `.venv` that is `usable`: the present one, else an empty new one. Raises `SetupError` where this Python cannot make one."""
    if usable(engine):
        return
    own, known = f"{sys.version_info.major}.{sys.version_info.minor}", PYTHONS[engine]
    if own not in known:
        path = f"/path/to/python{known[0]}"
        raise SetupError(f"the {engine} engine's lock is for Python {' or '.join(known)}, this is {own}; try: make setup PYTHON={path}")
    if VENV.exists():
        say("what is in .venv is unfinished, another engine's or another Python's; starting again with an empty one")
        shutil.rmtree(VENV)
    made = subprocess.run([BASE_PYTHON, "-m", "venv", VENV], capture_output=True, text=True)
    if made.returncode != 0:
        detail = (made.stdout + made.stderr).strip()
        raise SetupError(f"{BASE_PYTHON} cannot make a virtual environment; is its venv package installed?\n{detail}")


def pip(*arguments: str | Path) -> None:
    """Run pip with its output in the log. Raises `SetupError` with the end of that log."""
    code = pip_code(*arguments)
    if code == 0:
        return
    lines = LOG.read_text(encoding="utf-8", errors="replace").splitlines()
    tail = "\n".join(line[:300] for line in lines[-LOG_TAIL_LINES:])
    raise SetupError(f"pip failed with exit code {code}; the end of {LOG.relative_to(ROOT)}:\n{tail}")


def pip_code(*arguments: str | Path) -> int:
    command = [PYTHON, "-m", "pip", "install", "--no-input", "--progress-bar", "off", "--no-deps", "--no-compile", *arguments]
    with LOG.open("a", encoding="utf-8") as log:
        return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT).returncode


def split_torch(text: str) -> tuple[str, str]:
    """A lock's entry for PyTorch, and the rest of the lock."""
    entries = re.split(r"\n(?=\S)", text.strip())
    of_torch = [entry for entry in entries if entry.startswith("torch==")]
    return "\n".join(of_torch) + "\n", "\n".join(entry for entry in entries if entry not in of_torch) + "\n"


def install_locked(lock: Path) -> None:
    """The packages of a lock. Where pip finds no CPU build of PyTorch, its general build takes that place."""
    torch, rest = split_torch(lock.read_text(encoding="utf-8"))
    if "+cpu" not in torch:
        pip("--require-hashes", "-r", lock)
        return
    wanted, others = VENV / ".torch.lock", VENV / ".others.lock"
    wanted.write_text(torch, encoding="utf-8")
    others.write_text(rest, encoding="utf-8")
    if pip_code("--require-hashes", "-r", wanted) != 0:
        if "No matching distribution found for torch==" not in LOG.read_text(encoding="utf-8", errors="replace"):
            pip("--require-hashes", "-r", wanted)  # something else is wrong: this reports it
        else:
            say(GENERAL_TORCH_SAYS)
            pip("--require-hashes", "-r", GENERAL_TORCH)
    pip("--require-hashes", "-r", others)


def compile_all() -> None:
    """Byte-compile the packages on all cores; pip would use one. Files for other Python versions in some packages stay as they are."""
    (packages,) = VENV.glob("lib/python*/site-packages")
    command = [str(PYTHON), "-m", "compileall", "-q", "-j", "0", "-x", r"/tests?/", str(packages)]
    with LOG.open("a", encoding="utf-8") as log:
        subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT)


def install(lock: Path, done: Path) -> None:
    make_venv(lock.stem)
    UNFINISHED.touch()
    for old in (*VENV.glob(".setup-cpu-*"), *VENV.glob(".setup-cuda-*")):
        old.unlink()
    LOG.unlink(missing_ok=True)
    install_locked(lock)
    compile_all()
    pip("--no-build-isolation", "-e", ROOT)
    if not works("-c", "import connectors, duckdb, harvester, jobs, pyarrow"):
        raise SetupError(f"the packages are installed and cannot be imported; remove {VENV} and run make setup again")
    done.touch()
    UNFINISHED.unlink()


def main() -> int:
    started_s = time.monotonic()
    try:
        engine, why = device()
        lock = ROOT / "requirements" / f"{engine}.lock"
        done = stamp(lock)
        with alone():
            if done.exists() and PYTHON.exists() and not UNFINISHED.exists():
                say(f".venv is up to date ({engine} engine)")
                return 0
            say(f"the {engine} engine: {why}")
            say(f"installing it into .venv; a few minutes the first time, log in {LOG.relative_to(ROOT)}")
            install(lock, done)
    except SetupError as error:
        sys.stderr.write(f"setup: {error}\n")
        return 1
    say(f"ready in {time.monotonic() - started_s:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
