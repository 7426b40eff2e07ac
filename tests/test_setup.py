"""Set-up's choices: which engine this machine gets, and when what is there is good enough."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"harvester_{name}", TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def setup() -> ModuleType:
    return tool("setup")


@pytest.fixture
def machine(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a lock and a finished `.venv`; returns its root."""
    for name in ("cpu.lock", "cuda.lock"):
        (tmp_path / "requirements").mkdir(exist_ok=True)
        (tmp_path / "requirements" / name).write_text(name, encoding="utf-8")
    (tmp_path / "pyproject.toml").write_text("[project]", encoding="utf-8")
    venv = tmp_path / ".venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "bin" / "python").touch()
    for name, path in {"ROOT": tmp_path, "VENV": venv, "PYTHON": venv / "bin/python", "UNFINISHED": venv / ".setup-unfinished"}.items():
        monkeypatch.setattr(setup, name, path)
    monkeypatch.setenv("HARVESTER_DEVICE", "cpu")
    setup.stamp(tmp_path / "requirements" / "cpu.lock").touch()
    return tmp_path


@pytest.fixture
def installed(setup: ModuleType, machine: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the locks that were installed."""
    locks: list[str] = []
    monkeypatch.setattr(setup, "LOG", machine / ".venv" / "setup.log")
    monkeypatch.setattr(setup, "install", lambda lock, done: locks.append(lock.name))
    return locks


@pytest.mark.parametrize(
    ("listing", "exit_code", "expected"),
    [
        ("GPU 0: NVIDIA H200 (UUID: GPU-0)", 0, "cuda"),
        ("No devices found.", 0, "cpu"),
        ("GPU access blocked by the operating system", 9, "cpu"),
    ],
    ids=["a gpu", "a driver without a gpu", "a driver that fails"],
)
def test_the_engine_fits_what_the_driver_lists(
    setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listing: str, exit_code: int, expected: str
) -> None:
    driver = tmp_path / "nvidia-smi"
    driver.write_text(f"#!/bin/sh\necho '{listing}'\nexit {exit_code}\n", encoding="utf-8")
    driver.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HARVESTER_DEVICE", raising=False)
    assert setup.device() == expected


def test_a_machine_without_a_driver_gets_the_cpu_engine(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HARVESTER_DEVICE", raising=False)
    assert setup.device() == "cpu"


def test_the_user_overrides_what_the_machine_is_seen_to_have(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVESTER_DEVICE", "cuda")
    assert setup.device() == "cuda"


def test_an_unknown_device_is_refused_with_the_known_ones(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARVESTER_DEVICE", "tpu")
    with pytest.raises(setup.SetupError, match="HARVESTER_DEVICE=tpu is not known; give cpu or cuda"):
        setup.device()


def test_a_finished_set_up_is_not_done_again(setup: ModuleType, machine: Path, installed: list[str]) -> None:
    assert setup.main() == 0
    assert installed == []


@pytest.mark.parametrize("changed", ["requirements/cpu.lock", "pyproject.toml"])
def test_a_changed_lock_or_project_file_is_installed(setup: ModuleType, machine: Path, installed: list[str], changed: str) -> None:
    (machine / changed).write_text("changed", encoding="utf-8")
    assert setup.main() == 0
    assert installed == ["cpu.lock"]


def test_a_set_up_that_was_killed_is_done_again(setup: ModuleType, machine: Path, installed: list[str]) -> None:
    (machine / ".venv" / ".setup-unfinished").touch()
    assert setup.main() == 0
    assert installed == ["cpu.lock"]


def test_another_device_is_installed_from_its_own_lock(
    setup: ModuleType, machine: Path, installed: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HARVESTER_DEVICE", "cuda")
    assert setup.main() == 0
    assert installed == ["cuda.lock"]


# -- the browser --------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with no program at all; returns the folder that its path names."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("HARVESTER_CHROMIUM", raising=False)
    return tmp_path


def program(folder: Path, name: str, text: str = "") -> None:
    (folder / name).write_text(f"#!/bin/sh\n{text}\n", encoding="utf-8")
    (folder / name).chmod(0o755)


def test_a_browser_that_is_there_is_taken(bare: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program(bare, "apt-get", "exit 1")
    program(bare, "chromium")
    assert tool("browser").main() == 0
    assert capsys.readouterr().out == ""


def test_a_missing_browser_is_installed(bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    browser = tool("browser")
    monkeypatch.setattr(browser.os, "geteuid", lambda: 0)
    program(bare, "apt-get", f'case "$*" in *install*chromium) : > {bare}/chromium; /bin/chmod +x {bare}/chromium;; esac')
    assert browser.main() == 0
    assert browser.find() == str(bare / "chromium")
    assert "skipped" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("has_apt", "user", "reason"),
    [(False, 0, "there is no apt-get"), (True, 1000, "installing needs root"), (True, 0, "no such package")],
    ids=["no apt", "no root", "no package"],
)
def test_set_up_goes_on_without_a_browser_and_says_why(
    bare: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], has_apt: bool, user: int, reason: str
) -> None:
    browser = tool("browser")
    monkeypatch.setattr(browser.os, "geteuid", lambda: user)
    if has_apt:
        program(bare, "apt-get", "echo 'no such package' >&2; exit 100")
    assert browser.main() == 0
    assert f"are skipped ({reason}); install chromium to run them" in capsys.readouterr().out
