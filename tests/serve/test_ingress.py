"""The program that is started as HAProxy, with a real one: who listens, what nobody answers, and how a port is handed over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import httpx
import psutil
import pytest

from harvester.errors import NoReplicaError, from_json
from harvester.ports import free_port
from harvester.serve.ingress.front import RETRY_AFTER_S, Front, haproxy_binary, write_launcher
from harvester.serve.ingress.program import ASLEEP, FLEET, PID, UNCONFIRMED_S, address, corrected, running
from harvester.serve.processes import MARK, stop_marked
from tests.scripted_server import wait_until

pytestmark = pytest.mark.serve
OWN = "test-ingress"
SERVED = """\
global
    stats socket {folder}/node/admin.sock mode 666 level admin expose-fd listeners
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    errorfile 502 /nowhere/500.http
    errorfile 503 /nowhere/500.http
frontend prometheus
    bind :{other}
    mode http
frontend http_frontend
    bind 127.0.0.1:{port}
    acl routes path -i /-/routes
    http-request return status 200 content-type text/plain string "chat" if routes
    acl is_chat path_beg /chat/
    use_backend chat if is_chat
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain lf-string "Path '%[path]' not found."
backend chat
    server one 127.0.0.1:{dead} check
    server two 127.0.0.1:{other} check backup
listen stats
  bind *:{other}
  stats enable
"""


@pytest.fixture
def front(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Front]:
    folder = tmp_path_factory.mktemp("in")
    haproxy = haproxy_binary()
    assert haproxy is not None
    found = Front(folder, write_launcher(folder, haproxy, "127.0.0.1"), "127.0.0.1", free_port(), {MARK: OWN})
    yield found
    found.stop()
    stop_marked(OWN)


def test_in_a_fleet_it_takes_no_connection_once_its_manager_has_died(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder, haproxy, port = tmp_path_factory.mktemp("in"), haproxy_binary(), free_port()
    assert haproxy is not None
    launcher = write_launcher(folder, haproxy, "127.0.0.1", FLEET)
    (folder / "node").mkdir()
    values = {"folder": folder, "port": port, "dead": free_port(), "other": free_port()}
    config = folder / "node" / "haproxy.cfg"
    config.write_text(SERVED.format(**values))
    manager = f"import subprocess, time; subprocess.Popen([{str(launcher)!r}, '-db', '-f', {str(config)!r}]); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", manager]) as process:
        wait_until(lambda: len(list(running(folder))) == 1, "HAProxy")
        ((_, pid),) = running(folder)
        assert httpx.get(f"http://127.0.0.1:{port}/-/routes").status_code == 404
        process.kill()
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=60)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{port}/-/routes")


def serve_as_ray(front: Front) -> Path:
    """The configuration of a node as Ray Serve writes it, started with its arguments. Returns its folder."""
    node = front.folder / "node"
    node.mkdir(exist_ok=True)
    values = {"folder": front.folder, "port": front.port, "dead": free_port(), "other": free_port()}
    (node / "haproxy.cfg").write_text(SERVED.format(**values))
    front.start(node / "haproxy.cfg")
    return node


def test_a_port_that_is_held_says_in_openais_shape_when_to_try_again(front: Front) -> None:
    front.hold()
    answer = httpx.post(f"http://127.0.0.1:{front.port}/v1/chat/completions", json={})
    assert (answer.status_code, answer.headers["retry-after"]) == (503, str(RETRY_AFTER_S))
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}
    assert isinstance(from_json(answer.json(), 503), NoReplicaError)


@pytest.mark.parametrize(("path", "status"), [("/chat/x", 503), ("/other", 503), ("/-/routes", 404)])
def test_without_a_replica_rays_configuration_answers_the_same_and_at_once(front: Front, path: str, status: int) -> None:
    serve_as_ray(front)
    answer = httpx.get(f"http://127.0.0.1:{front.port}{path}")
    assert answer.status_code == status
    assert (answer.headers.get("retry-after") is not None) == (status == 503)


def test_haproxy_listens_on_the_servers_port_alone(front: Front) -> None:
    serve_as_ray(front)
    ((_, pid),) = running(front.folder)
    listening = {found.laddr for found in psutil.Process(pid).net_connections("tcp") if found.status == "LISTEN"}
    assert {(found.ip, found.port) for found in listening} == {("127.0.0.1", front.port)}


def test_the_port_is_handed_over_in_both_directions(front: Front) -> None:
    url = f"http://127.0.0.1:{front.port}"
    front.hold()
    ((_, first),) = running(front.folder)
    serve_as_ray(front)
    assert httpx.get(f"{url}/-/routes").status_code == 404
    psutil.wait_procs([psutil.Process(first)] if psutil.pid_exists(first) else [], timeout=60)
    assert first not in front.own
    front.hold()
    assert httpx.get(f"{url}/-/routes").status_code == 503


def test_a_stand_in_that_died_before_ray_had_a_configuration_comes_back(front: Front) -> None:
    front.hold()
    ((_, pid),) = running(front.folder)
    psutil.Process(pid).kill()
    psutil.wait_procs([psutil.Process(pid)] if psutil.pid_exists(pid) else [], timeout=60)
    assert front.is_gone()
    front.bring_back()
    assert not front.is_gone()
    assert httpx.get(f"http://127.0.0.1:{front.port}/health").status_code == 503


def test_a_haproxy_that_died_comes_back_with_its_last_configuration(front: Front) -> None:
    serve_as_ray(front)
    assert not front.is_gone()
    ((_, pid),) = running(front.folder)
    psutil.Process(pid).send_signal(signal.SIGKILL)
    psutil.Process(pid).wait(60) if psutil.pid_exists(pid) else None
    assert front.is_gone()
    front.bring_back()
    assert not front.is_gone()
    assert httpx.get(f"http://127.0.0.1:{front.port}/-/routes").status_code == 404


def test_a_haproxy_whose_number_another_process_got_is_missed_too(front: Front) -> None:
    front.hold()
    (front.folder / PID).write_text(str(os.getpid()))
    assert not front.is_gone()  # it answers
    front.stop()
    assert front.is_gone()


SLEEPING = """\
defaults
    mode http
    timeout connect 5s
    timeout client 60s
    timeout server 60s
    errorfile 503 /nowhere/500.http
frontend http_frontend
    bind 127.0.0.1:{port}
    acl is_jobs path_beg /api/
    acl is_jobs path /api
    acl is_small path_beg /models/small/
    acl is_small path /models/small
    acl is_chat path_beg /
    acl is_chat path /
    use_backend jobs if is_jobs
    use_backend small if is_small
    use_backend chat if is_chat
backend jobs
    http-request return status 200 content-type text/plain lf-string "%[path]"
    server one 127.0.0.1:{dead} check
backend small
    server fallback 127.0.0.1:{dead} check backup
backend chat
    server fallback 127.0.0.1:{dead} check backup
"""


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("/v1/chat/completions", "/api/asleep/v1/chat/completions"),
        ("/", "/api/asleep/"),
        ("/models/small/v1/models", "/api/asleep/models/small/v1/models"),
        ("/api/jobs", "/api/jobs"),
    ],
)
def test_what_is_asked_of_a_model_without_replicas_goes_to_the_jobs_application(
    tmp_path_factory: pytest.TempPathFactory, path: str, told: str
) -> None:
    folder, haproxy = tmp_path_factory.mktemp("in"), haproxy_binary()
    assert haproxy is not None
    front = Front(folder, write_launcher(folder, haproxy, "127.0.0.1", ASLEEP), "127.0.0.1", free_port(), {MARK: OWN})
    (folder / "node").mkdir()
    admin = f"global\n    stats socket {folder}/node/admin.sock mode 666 level admin expose-fd listeners\n"
    (folder / "node" / "haproxy.cfg").write_text(admin + SLEEPING.format(port=front.port, dead=free_port()))
    try:
        front.start(folder / "node" / "haproxy.cfg")
        assert httpx.get(f"http://127.0.0.1:{front.port}{path}").text == told
    finally:
        front.stop()
        stop_marked(OWN)


def test_what_is_corrected_is_in_rays_own_template() -> None:
    """Fails where a later Ray writes its configuration in another way."""
    ray = find_spec("ray")
    assert ray is not None
    assert ray.origin is not None
    template = Path(ray.origin).with_name("serve").joinpath("_private", "haproxy_templates.py").read_text("utf-8")
    for line in (
        "frontend prometheus\n",
        "frontend http_frontend\n    bind {{ config.frontend_host }}:{{ config.frontend_port }}\n",
        "listen stats\n",
        "backend default_backend\n    http-request return status 404",
        "    errorfile 503 {{ config.error_file_path }}\n",
        "    stats socket {{ config.socket_path }} mode 666 level admin expose-fd listeners\n",
        'string "{{ route_info.routes_message }}" if routes\n',
        "check backup\n",
        "    option splice-request\n",
        "    acl is_{{ backend.name or 'unknown' }} path_beg {{ '/' if not backend.path_prefix",
        "    use_backend {{ backend.name or 'unknown' }} if is_{{ backend.name or 'unknown' }}\n",
    ):
        assert line in template, line


def test_a_connection_to_a_machine_without_power_ends(tmp_path: Path) -> None:
    """What keeps it open otherwise is seen with real machines in `tests/fleet`."""
    text = corrected(SERVED.format(folder=tmp_path, port=1, dead=2, other=3), "0.0.0.0", tmp_path / "503", [FLEET])
    assert f"server one 127.0.0.1:2 check tcp-ut {UNCONFIRMED_S}s\n" in text
    assert text.index("option srvtcpka\n") < text.index("timeout check 5s\n") < text.index("frontend ")


def test_haproxy_does_not_splice(tmp_path: Path) -> None:
    """`test_chat` has clients that hang up: with splicing their requests stayed in the engine, and HAProxy took a core."""
    section = "defaults\n    mode http\n    option splice-request\n    option splice-response\n    option http-no-delay\n"
    assert corrected(section, "127.0.0.1", tmp_path) == "defaults\n    mode http\n    option http-no-delay\n    timeout http-request 30s\n"


def test_what_is_corrected_once_stays_as_it_is(tmp_path: Path) -> None:
    once = corrected(SERVED.format(folder=tmp_path, port=1, dead=2, other=3), "0.0.0.0", tmp_path / "503")
    assert corrected(once, "0.0.0.0", tmp_path / "503") == once
    assert "bind ipv4@*:1\n" in once
    both = (ASLEEP, FLEET)
    asleep = corrected(SLEEPING.format(port=1, dead=2), "0.0.0.0", tmp_path / "503", both)
    assert corrected(asleep, "0.0.0.0", tmp_path / "503", both) == asleep
    assert ":3" not in once


BOUND = [
    ("127.0.0.1", "ipv4@127.0.0.1:80"),
    ("0.0.0.0", "ipv4@*:80"),
    ("::", "ipv6@[::]:80 v4v6"),
    ("::1", "ipv6@[::1]:80"),
    ("localhost", "ipv4@localhost:80"),
]


@pytest.mark.parametrize(("host", "bound"), BOUND)
def test_an_address_is_written_as_haproxy_has_it(host: str, bound: str) -> None:
    assert address(host, 80) == bound
