"""Checks on nodes of a joined cluster: whether a port is free, whether Ray asks for a token, why a process there has died."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from harvester.errors import HarvesterError
from harvester.serve.machine.port import PortError

ANSWER_S = 60.0
_ERROR = re.compile(r"ERROR [^\]]+\] [\w.]*(?:Error|Exception): (.+)")
_RAISED = re.compile(r"^[\w.]*(?:Error|Exception): (.+)", re.MULTILINE)
ELSEWHERE = "root cause"  # in an error that only refers to that of another process


def session_logs() -> Path:
    """The folder of Ray's logs on this node."""
    node = ray._private.worker.global_worker.node
    return Path(node.get_logs_dir_path()) if node is not None else Path("/tmp/ray/session_latest/logs")


def last_error() -> tuple[float, str] | None:
    """When the log was last written, and the last error of vLLM's processes on this node. Serve only sees that they ended.

    Errors that only refer to that of another process are skipped.
    """
    found: tuple[float, str] | None = None
    for path in session_logs().glob("worker-*.out"):
        errors = [said for said in _errors(path.read_text("utf-8", "replace")) if ELSEWHERE not in said]
        if errors and (found is None or path.stat().st_mtime > found[0]):
            found = path.stat().st_mtime, str(errors[-1]).strip()
    return found


def _errors(log: str) -> Iterator[str]:
    """Messages of the exceptions that vLLM's processes logged, as text or as JSON (`logs.format`)."""
    for line in log.splitlines():
        if (found := _ERROR.search(line)) is not None:
            yield found[1]
        elif '"exc_info"' in line:
            with suppress(ValueError, TypeError, KeyError, AttributeError):  # another program's line
                told = json.loads(line[line.index("{") :])
                if told.get("levelname", "ERROR") in ("ERROR", "CRITICAL"):  # vLLM warns with exceptions too, of modules it can do without
                    yield from _RAISED.findall(told["exc_info"])


def root_cause() -> str | None:
    """The latest error of all nodes that answer; with the node's name if it is not this one."""
    errors = [(error, host) for host, error in _on_every_node(last_error) if error is not None]
    if not errors:
        return None
    (_, message), host = max(errors)
    return message if host == socket.gethostname() else f"on {host}: {message}"


def check_ports(host: str, port: int, check: Callable[[str, int], None]) -> None:
    """Run ``check`` on every node. Raises `PortError` with the node's name and the reason if one cannot listen there."""

    def refused() -> str | None:
        try:
            check(host, port)
        except HarvesterError as error:
            return error.message
        return None

    for name, reason in _on_every_node(refused):
        if reason is not None:
            raise PortError(f"on {name}: {reason}")


def token_warning(address: str, head: str | None) -> str | None:
    """What to say of a joined cluster whose Ray asks for no token; None where it asks, or its ``head`` (a node id) does not answer.

    Ray that asks for none lets in who sends one, too: then the environment of the head's processes says what it asks for.
    """
    if _has_token() and (head is None or all(asks for _, asks in _on([head], _has_token))):
        return None
    return (
        f"Ray in the cluster at {address} asks for no token: whoever reaches its ports can run programs on its machines; "
        "start its nodes with RAY_AUTH_MODE=token and the same RAY_AUTH_TOKEN"
    )


def _has_token() -> bool:
    return os.environ.get("RAY_AUTH_MODE", "disabled").lower() == "token"


def _on_every_node(work: Callable[[], Any]) -> list[tuple[str, Any]]:
    return _on([node["NodeID"] for node in ray.nodes() if node["Alive"]], work)


def _on(node_ids: Iterable[str], work: Callable[[], Any]) -> list[tuple[str, Any]]:
    """Run ``work`` on these nodes. Returns host name and answer of those that answer within `ANSWER_S`."""

    def here() -> tuple[str, Any]:
        return socket.gethostname(), work()

    asked = []
    for node_id in node_ids:
        where = NodeAffinitySchedulingStrategy(node_id, soft=False)
        options: dict[str, Any] = {"num_cpus": 0, "max_retries": 0, "scheduling_strategy": where}
        asked.append(ray.remote(**options)(here).remote())
    done, _ = ray.wait(asked, num_returns=len(asked), timeout=ANSWER_S)
    answers = []
    for one in done:
        try:
            answers.append(ray.get(one))
        except (RayError, GetTimeoutError):  # the node has gone
            continue
    return answers
