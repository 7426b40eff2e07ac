"""What Ray's processes are told, whatever the caller's shell says."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from harvester.config import ServeConfig
from harvester.errors import ConfigError, StorageError
from harvester.serve.environment import LONGEST_STREAM_S, check_sleep, joined_variables, prepare_environment, use_haproxy
from harvester.serve.ingress.front import TOLD, forget_nodes
from harvester.serve.runtime import MAX_PATH_BYTES, make_node_folder, node_folder, runtime_folder
from jobs.storage.folder import StateFolder

MARK = "0123456789ab"


@pytest.fixture(autouse=True)
def shell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(os, "environ", {name: value for name, value in os.environ.items() if not name.startswith("RAY_")})


def prepared(tmp_path: Path, **config: object) -> dict[str, str]:
    folder = StateFolder(tmp_path / "state")
    folder.prepare()
    prepare_environment(ServeConfig.model_validate(config), folder, MARK)
    return dict(os.environ)


def test_a_shell_without_authentication_does_not_open_the_server(tmp_path: Path) -> None:
    os.environ.update({"RAY_AUTH_MODE": "disabled", "RAY_AUTH_TOKEN": "known", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1"})
    first = prepared(tmp_path)
    assert (first["RAY_AUTH_MODE"], first["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"]) == ("token", "0")
    assert len(first["RAY_AUTH_TOKEN"]) == 64
    assert prepared(tmp_path)["RAY_AUTH_TOKEN"] != first["RAY_AUTH_TOKEN"]


def test_a_joined_cluster_keeps_its_own_token_and_addresses(tmp_path: Path) -> None:
    assert "RAY_AUTH_MODE" not in prepared(tmp_path, address="10.0.0.1:6379")
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("theirs")
    told = prepared(tmp_path, address="10.0.0.1:6379")
    assert told["RAY_AUTH_MODE"] == "token"
    assert not {"RAY_AUTH_TOKEN", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "RAY_gcs_storage"} & told.keys()


LATE_CALL = """
import ray

@ray.remote
class Late:
    pass

try:
    Late.remote()
except ray.exceptions.RaySystemError:
    print("refused")
print(ray.is_initialized())
"""


def test_a_late_call_of_serves_starts_no_cluster_of_its_own(tmp_path: Path) -> None:
    told = subprocess.run([sys.executable, "-c", LATE_CALL], env=prepared(tmp_path), capture_output=True, text=True, check=True)
    assert told.stdout == "refused\nFalse\n"


@pytest.mark.parametrize(
    ("given", "is_haproxy"),
    [
        ({"host": "0.0.0.0"}, True),
        ({"host": "127.0.0.1"}, False),  # where others do not reach the server they must not reach its replicas either
        ({"host": "0.0.0.0", "ingress": "proxy"}, False),
    ],
)
def test_a_joined_cluster_has_haproxy_where_its_replicas_may_be_reached(given: dict[str, str], is_haproxy: bool) -> None:
    config = ServeConfig.model_validate({"address": "10.0.0.1:6379", **given})
    told = joined_variables(config)
    assert (told.get("RAY_SERVE_ENABLE_HA_PROXY") == "1") is use_haproxy(config) is is_haproxy


@pytest.mark.parametrize("ingress", ["haproxy", "proxy"])
def test_serves_controller_has_the_same_patience_with_an_ingress_in_a_joined_cluster(tmp_path: Path, ingress: str) -> None:
    own = prepared(tmp_path)
    names = ("PROXY_READY_CHECK_TIMEOUT_S", "PROXY_HEALTH_CHECK_TIMEOUT_S", "PROXY_HEALTH_CHECK_PERIOD_S", "HAPROXY_STARTUP_TIMEOUT_S")
    wanted = {f"RAY_SERVE_{name}": own[f"RAY_SERVE_{name}"] for name in names}
    for name in wanted:
        del os.environ[name]
    told = joined_variables(ServeConfig.model_validate({"address": "10.0.0.1:6379", "host": "0.0.0.0", "ingress": ingress}))
    assert {name: told.get(name) for name in wanted} == wanted
    os.environ["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] = "7"
    told = joined_variables(ServeConfig.model_validate({"address": "10.0.0.1:6379", "host": "0.0.0.0", "ingress": ingress}))
    assert told["RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S"] == "7"


def test_every_process_of_a_joined_cluster_writes_the_same_launcher() -> None:
    """The last to start on a node wins, whichever model it is of, and whichever server started it."""
    models = {"small": {"replicas": {"min": 0, "max": 1}}, "other": {}}
    config = ServeConfig.model_validate({"address": "10.0.0.1:6379", "host": "0.0.0.0", "ingress": "haproxy", "models": models})
    earlier = config.model_copy(update={"models": {}})
    told = {joined_variables(one)[TOLD] for one in (config, config.of("small"), config.of("other"), earlier)}
    assert told == {"0.0.0.0 fleet,asleep"}


def test_what_an_operator_has_set_of_haproxy_stays() -> None:
    os.environ["RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S"] = "9"
    assert joined_variables(ServeConfig(address="10.0.0.1:6379", host="0.0.0.0"))["RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S"] == "9"


def test_the_folder_of_a_node_is_one_that_no_other_user_can_write_to(tmp_path: Path) -> None:
    path = tmp_path / "node"
    make_node_folder(path)
    make_node_folder(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o700
    assert len(str(node_folder(65535))) <= MAX_PATH_BYTES
    path.chmod(0o755)
    with pytest.raises(StorageError, match="is not a private folder of user"):
        make_node_folder(path)
    path.rmdir()
    path.symlink_to(tmp_path)
    with pytest.raises(StorageError, match="is not a private folder of user"):
        make_node_folder(path)


def test_nodes_of_earlier_clusters_are_forgotten_and_ones_own_is_not(tmp_path: Path) -> None:
    for name in ("old", "own", "young"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "haproxy.cfg").touch()
    for name in ("old", "own"):
        os.utime(tmp_path / name / "haproxy.cfg", (0, 0))
    forget_nodes(tmp_path, "own")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["own", "young"]


def test_streams_outlive_a_reload_of_haproxy(tmp_path: Path) -> None:
    told = prepared(tmp_path, ingress="haproxy")
    assert int(told["RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S"]) == LONGEST_STREAM_S >= 3600
    assert told["RAY_SERVE_HAPROXY_BINARY_PATH"] == str(runtime_folder(StateFolder(tmp_path / "state"), MARK) / "haproxy")
    assert os.access(told["RAY_SERVE_HAPROXY_BINARY_PATH"], os.X_OK)


@pytest.mark.parametrize(
    "config",
    [{"ingress": "proxy"}, {"address": "10.0.0.1:6379", "host": "10.0.0.1", "ingress": "proxy"}, {"address": "10.0.0.1:6379"}],
    ids=["of its own", "where Serve has proxies", "joined on loopback"],
)
def test_no_model_sleeps_behind_serves_own_proxies(config: dict[str, object]) -> None:
    """They hold a chat without a word until the model is loaded, and a health check would load it."""
    check_sleep(ServeConfig.model_validate(config))
    for sleeping in ({"replicas": {"min": 0, "max": 2}}, {"models": {"small": {"replicas": {"min": 0, "max": 2}}}}):
        with pytest.raises(ConfigError, match=r"replicas\.min=0 needs HAProxy .* set replicas\.min to 1 or more, or "):
            check_sleep(ServeConfig.model_validate(config | sleeping))


def test_a_model_may_sleep_behind_haproxy() -> None:
    check_sleep(ServeConfig.model_validate({"ingress": "haproxy", "replicas": {"min": 0, "max": 2}}))


def test_a_joined_cluster_with_proxies_is_told_to_no_model_that_sleeps() -> None:
    config = {"address": "10.0.0.1:6379", "host": "10.0.0.1", "ingress": "proxy", "replicas": {"min": 0, "max": 2}}
    with pytest.raises(ConfigError, match=r"replicas\.min=0"):
        joined_variables(ServeConfig.model_validate(config))
