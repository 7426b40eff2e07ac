"""`harvester serve` and `harvester stop`."""

from __future__ import annotations

import importlib
import importlib.util
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, TextIO

import psutil
import typer

from harvester.cli.invocation import Invocation, command, server_file
from harvester.config import load_config
from harvester.core import ENGINE_HINT
from harvester.errors import EngineError, HarvesterError
from harvester.serve.processes import numbering
from jobs.storage.folder import StateFolder

STOP_S = 30.0

app = typer.Typer()


@command(app)
def serve(
    here: Invocation,
    model: Annotated[str | None, typer.Option("--model", "-m", metavar="MODEL", help="Hugging Face id or folder.")] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", metavar="FILE", help="YAML file; options here win over it.")] = None,
    port: Annotated[int | None, typer.Option("--port", "-p", metavar="PORT", help="Port to listen on. Default: 8000.")] = None,
    host: Annotated[str | None, typer.Option("--host", metavar="HOST", help="Address to listen on. Default: 127.0.0.1.")] = None,
    replicas: Annotated[int | None, typer.Option("--replicas", metavar="N", help="Number of engines. Default: 1.")] = None,
    no_keys: Annotated[
        bool, typer.Option("--no-keys", help="Listen to the network without API keys: everybody there may do everything.")
    ] = False,
    address: Annotated[str | None, typer.Option("--address", metavar="RAY", help="Ray cluster to join. Default: start one here.")] = None,
) -> None:
    """Serve chat and batch jobs, until Ctrl-C.

    Without --model, an embedded toy model answers; it needs no GPU and no download. With --json, each event is one line.

    \b
    Example:
        harvester serve --model Qwen/Qwen3-8B --port 8000
    """
    given = {"model": model, "port": port, "host": host, "replicas": replicas, "address": address}
    values = load_config(config, given)
    if no_keys:
        values = values.model_copy(update={"access": values.access.model_copy(update={"no_keys": True})})
    require_engine("ray", "vllm")
    server = importlib.import_module("harvester.serve.server")
    server.run(values, here.state_dir, unharmed(_json_events(here) if here.json else Announcer(values.model is None)))


@command(app)
def stop(here: Invocation) -> None:
    """Stop the server of the state folder. Its jobs continue with the next server.

    Waits 30 s. Open chats may take longer (`drain_s`, 120 s by default); harvester stop again ends them. In a Ray cluster that was
    joined it ends only the server: there chats go on for at most `drain_s`, and a further harvester stop waits for them and ends the rest.

    \b
    Example:
        harvester stop
    """
    process = _server_process(here.state_dir)
    if process is None:
        _stop_without_process(here)
        return
    try:
        process.send_signal(signal.SIGTERM)
        process.wait(STOP_S)
    except psutil.NoSuchProcess:
        pass  # it went by itself
    except psutil.TimeoutExpired as error:
        again = "them" if _cluster(here.state_dir) is None else "the server; they go on in the Ray cluster"
        raise HarvesterError(
            f"the server (process {process.pid}) still runs after {STOP_S:.0f} s, as open chats may end; "
            f"harvester stop again ends {again}; in need: kill -9 {process.pid}"
        ) from error
    except psutil.AccessDenied as error:
        raise HarvesterError(f"the server (process {process.pid}) belongs to another user; only they can stop it") from error
    left_in = _cluster(here.state_dir)
    line = f"stopped the server (process {process.pid}) on {here.state_dir}"
    if left_in is not None:
        line += (
            f"; applications are left in the Ray cluster at {left_in}, where open chats may end; "
            "harvester stop again waits for them and ends the rest"
        )
    _say(here, line, stopped=True, pid=process.pid, left_in=left_in)


def _stop_without_process(here: Invocation) -> None:
    """End what a server deployed in a cluster, which goes on without it."""
    if StateFolder(here.state_dir).is_served():
        if (host := _elsewhere(here.state_dir)) is not None:
            raise HarvesterError(f"the server on {here.state_dir} runs on {host}; run harvester stop there")
        raise HarvesterError(f"{here.state_dir} is in use by a server that is just starting or stopping, or by harvester repair; try again")
    address = _cluster(here.state_dir)
    if address is None:
        _say(here, f"no server is running on {here.state_dir}", stopped=False)
        return
    require_engine("ray")
    importlib.import_module("harvester.serve.machine.leaving").end_joined(address, here.state_dir)
    _say(here, f"stopped the applications in the Ray cluster at {address}", stopped=True, address=address)


def _say(here: Invocation, line: str, **fields: Any) -> None:
    if here.json:
        here.print_json({**fields, "state": str(here.state_dir)})
    else:
        print(line)


def _server_process(state_dir: Path) -> psutil.Process | None:
    """The process that ``server.json`` names, if it is still a harvester server of this machine: process ids are reused."""
    pid = server_file(state_dir).get("pid")
    if not isinstance(pid, int) or _elsewhere(state_dir) is not None:
        return None
    try:
        process = psutil.Process(pid)
        words = process.cmdline()
        is_ours = process.status() != psutil.STATUS_ZOMBIE and "serve" in words and any(Path(word).name == "harvester" for word in words)
    except (psutil.NoSuchProcess, psutil.AccessDenied, ValueError):
        return None
    return process if is_ours else None


def _elsewhere(state_dir: Path) -> str | None:
    """The other machine, or container, of which ``server.json`` names a process: several may see the folder."""
    told, own = server_file(state_dir), numbering()
    host, there = told.get("host"), told.get("numbering")
    if not isinstance(host, str):
        return None
    is_here = there == own if own is not None and isinstance(there, str) else host == socket.gethostname()
    return None if is_here else f"{host} as process {told.get('pid')}"


def _cluster(state_dir: Path) -> str | None:
    """Address of the cluster in which applications of this state folder may run without a server's process."""
    with suppress(OSError):
        return StateFolder(state_dir).cluster.read_text(encoding="utf-8").strip() or None
    address = server_file(state_dir).get("address")  # where earlier versions named it
    return address if isinstance(address, str) else None


def require_engine(*modules: str) -> None:
    """Raise `EngineError` where one of them is not installed."""
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineError(f"{' and '.join(missing)} not installed; {ENGINE_HINT}")


def _json_events(here: Invocation) -> Callable[[str, dict[str, Any]], None]:
    return lambda kind, fields: here.print_json({"event": kind, **fields})


def unharmed(on_event: Callable[[str, dict[str, Any]], None]) -> Callable[[str, dict[str, Any]], None]:
    """``on_event``, whose output may fail without ending a server: its reader has left (`| grep -m1 Ready`), or its disk is full."""

    def tell(kind: str, fields: dict[str, Any]) -> None:
        try:
            on_event(kind, fields)
        except BrokenPipeError:
            for stream in (sys.stdout, sys.stderr):
                _leave_closed(stream)
        except OSError:
            pass  # what is still in the buffer comes with the next event

    return tell


def _leave_closed(stream: TextIO) -> None:
    """Drop what is written to a stream whose reader has left, from here on."""
    try:
        stream.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
    except OSError:
        pass  # a full disk


class Announcer:
    """Prints a server's events for a person. ``is_embedded``: no model was asked for, so the embedded one answers."""

    def __init__(self, is_embedded: bool) -> None:
        self._is_embedded = is_embedded

    def __call__(self, kind: str, fields: dict[str, Any]) -> None:
        match kind:
            case "starting":
                note = f" ({fields['note']})" if fields.get("note") else ""
                print(f"Starting {fields['model']}{note}; the state folder is {fields['state']}")
                print(f"Engine: {fields['engine']}", flush=True)
            case "ready":
                self._print_ready(fields)
            case "stopping":
                print("Stopping: open chats may end (Ctrl-C again: not); unfinished rows continue with the next start", flush=True)
            case "waiting":
                print(f"Waiting for {fields['message']}", flush=True)
            case "stopped":
                print("Stopped", flush=True)
            case "warning":
                print(f"warning: {fields['message']}", file=sys.stderr, flush=True)
            case _:
                print(f"{kind}: {fields}", flush=True)

    def _print_ready(self, fields: dict[str, Any]) -> None:
        print(f"Ready after {fields['seconds']:.0f} s: {fields['url']} serves chat and jobs with model {fields['model']}")
        if self._is_embedded:
            print("This is the embedded toy model; for a real one: harvester serve --model Qwen/Qwen3-8B")
        print(f"Watch it in a browser: {fields['url']}/")
        if fields.get("open_to"):
            print(f"No API key is asked for: everybody on {fields['open_to']} may do everything; make a key with: harvester key add NAME")
        print("Next:")
        print("  harvester submit docs.parquet --task summarize --watch")
        print('  harvester chat "Say hello"')
        print("""  harvester sql "select * from results('latest') limit 5\"""", flush=True)
