"""Ray Serve starts this program as HAProxy: it corrects the configuration, takes the port over from a predecessor, and execs HAProxy.

Started for each reload, so it imports the standard library alone: ``program.py FOLDER HAPROXY HOST RULES [arguments of Ray Serve]``.
``FOLDER`` holds Ray Serve's files below the name of a node, and what `harvester.serve.ingress.front` writes. ``RULES``: `ASLEEP`
and `FLEET`, comma-separated, or an empty word.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

ADMIN = "admin.sock"
PID = "haproxy.pid"
LAST = "last.cfg"  # the configuration that was last started with replicas
UNAVAILABLE = "unavailable.http"
ANSWER_S = 2.0
ASLEEP = "asleep"  # a model may have no replica
FLEET = "fleet"  # replicas are on other machines too
SENT_TO = "/api/asleep"  # before the path of a request to a model without replicas
HEAD_S = 30
# A machine without power closes no connection. TCP keepalive notices that after 14 s. The kernel of a busy replica answers its probes.
PROBED = {"option": "srvtcpka", "srvtcpka-idle": "5s", "srvtcpka-intvl": "3s", "srvtcpka-cnt": "3"}
PATIENCE = {"timeout check": "5s"}  # for a replica that accepted the connection of a check and is busy
UNCONFIRMED_S = 14  # the same limit for data that was sent and not acknowledged
_PR_SET_PDEATHSIG = 1

_LISTENERS = ("frontend prometheus", "listen stats")  # on every interface; nobody reads them
_SPLICING = "option splice-"
_SERVER = re.compile(r"^(\s+server \S+ \S+:\d+ check.*)$", re.MULTILINE)
_REPLICA = re.compile(r"^\s+server \S+ \S+:\d+ check", re.MULTILINE)
_SECTION = re.compile(r"^\S", re.MULTILINE)
_PREFIX = re.compile(r"^\s+acl is_(\S+) path_beg (/|/models/\S+)$", re.MULTILINE)  # of a model's application
_NAMED = re.compile(r"^\s+acl is_(\S+) path_beg ", re.MULTILINE)
_CHOICE = re.compile(r"^\s+use_backend ", re.MULTILINE)


def corrected(text: str, host: str, unavailable: Path, rules: Collection[str] = ()) -> str:
    """Ray Serve's configuration of HAProxy, corrected.

    - It listens on ``host`` alone, without Ray's pages of statistics and routes.
    - It does not splice bodies. With splicing, after a client hangs up, HAProxy 2.8 spins on a core and the replica is not told.
    - It waits for the headers of a request as long as the wall waits for its body.
    - If no replica answers, it sends ``unavailable`` at once: no 500, and no wait at Serve's fallback proxy.
    - With `ASLEEP`, requests to a model without replicas go to the jobs application (`harvester.serve.http.asleep`).
    - In a fleet, connections to a dead machine end.
    """
    kept = [_lines(section, host, unavailable) for section in _sections(text) if not section.startswith(_LISTENERS)]
    if ASLEEP in rules:
        kept = [_waking(section) if section.startswith("frontend http_frontend") else section for section in kept]
    return "".join(_probing(section) for section in kept) if FLEET in rules else "".join(kept)


def _probing(section: str) -> str:
    if section.startswith("defaults") and "srvtcpka" not in section:
        return section + "".join(f"    {name} {value}\n" for name, value in (PROBED | PATIENCE).items())
    if section.startswith("backend") and " tcp-ut " not in section:
        return _SERVER.sub(rf"\1 tcp-ut {UNCONFIRMED_S}s", section)
    return section


def _waking(section: str) -> str:
    """The section with a rewrite rule for each model, before a backend is chosen."""
    first = _CHOICE.search(section)
    if first is None or SENT_TO in section:
        return section
    every = set(_NAMED.findall(section))
    rules = []
    for name, prefix in _PREFIX.findall(section):
        others = sorted(every - {name}) if prefix == "/" else []  # every path begins with it
        unless = "".join(f" !is_{other}" for other in others)
        rules.append(f"    http-request set-path {SENT_TO}%[path] if is_{name}{unless} {{ nbsrv({name}) eq 0 }}\n")
    return section[: first.start()] + "".join(rules) + section[first.start() :]


def _sections(text: str) -> Iterator[str]:
    starts = [found.start() for found in _SECTION.finditer(text)]
    for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
        yield text[start:end]


def _lines(section: str, host: str, unavailable: Path) -> str:
    kept = [line for line in section.splitlines() if not (line.lstrip().startswith("server ") and line.endswith(" backup"))]
    new = "\n".join(line for line in kept if not line.lstrip().startswith(_SPLICING)) + "\n"
    new = re.sub(r"^(\s+errorfile 50[234]) .*$", lambda found: f"{found[1]} {unavailable}", new, flags=re.MULTILINE)
    new = re.sub(r"^(\s+stats socket \S+ mode) 666", r"\1 600", new, flags=re.MULTILINE)
    new = re.sub(r"^(\s+)http-request return .* if routes$", r"\1http-request deny deny_status 404 if routes", new, flags=re.MULTILINE)
    if section.startswith("defaults") and "timeout http-request" not in section:
        new = new.rstrip("\n") + f"\n    timeout http-request {HEAD_S}s\n"
    if section.startswith("frontend http_frontend"):
        new = re.sub(r"^(\s+bind) \S+:(\d+)$", lambda found: f"{found[1]} {address(host, found[2])}", new, flags=re.MULTILINE)
    if section.startswith("backend default_backend"):  # the chat application's route is "/": it is not there yet, or no more
        new = re.sub(r"^(\s+)http-request return .*$", r"\1http-request deny deny_status 503", new, flags=re.MULTILINE)
    return new


def address(host: str, port: str | int) -> str:
    """Address for a ``bind`` line. ``::`` takes IPv4 too."""
    if ":" in host:
        return f"ipv6@[{host}]:{port}" + (" v4v6" if host == "::" else "")
    return f"ipv4@{'*' if host == '0.0.0.0' else host}:{port}"


def running(folder: Path) -> Iterator[tuple[Path, int]]:
    """The admin socket and the process id of every HAProxy below ``folder`` that answers."""
    for path in sorted(folder.glob(f"*/{ADMIN}")):
        pid = answers(path)
        if pid is not None:
            yield path, pid


def answers(admin: Path) -> int | None:
    """The process id of the HAProxy behind an admin socket; None where none answers."""
    found = re.search(r"^Pid: (\d+)$", _ask(admin, "show info"), re.MULTILINE)
    return int(found[1]) if found else None


def _ask(path: Path, command: str) -> str:
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(ANSWER_S)
        try:
            client.connect(str(path))
            client.sendall(command.encode() + b"\n")
            parts = []
            while part := client.recv(65536):
                parts.append(part)
        except OSError:
            return ""
    return b"".join(parts).decode("utf-8", "replace")


def taking_over(folder: Path, arguments: list[str]) -> list[str]:
    """Arguments that take over the listening sockets of a running HAProxy, so that no connection is refused. A reload needs none."""
    if "-x" in arguments:
        return []
    found = list(running(folder))
    return ["-x", str(found[0][0]), "-sf", *(str(pid) for _, pid in found)] if found else []


def main(folder: Path, haproxy: str, host: str, rules: Collection[str], arguments: list[str]) -> None:
    config = Path(arguments[arguments.index("-f") + 1])
    new = corrected(config.read_text("utf-8"), host, folder / UNAVAILABLE, rules)
    last = folder / LAST
    if FLEET in rules:  # nobody else looks after it there: when its manager dies, it takes no new connection and ends with the last one
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1)
    elif _REPLICA.search(new):
        last.write_text(new, "utf-8")
    elif last.is_file() and "frontend http_frontend" in new:  # a manager of HAProxy that has just started knows no replica yet
        new = last.read_text("utf-8")
    temporary = config.with_suffix(".new")
    temporary.write_text(new, "utf-8")
    temporary.replace(config)
    more = taking_over(folder, arguments)
    (folder / PID).write_text(f"{os.getpid()}\n", "utf-8")
    os.execv(haproxy, [haproxy, *arguments, *more])


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4].split(","), sys.argv[5:])
