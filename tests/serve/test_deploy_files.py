"""The image file and the manifests for Kubernetes, held to their own linters and to what the code says."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from harvester.config import ServeConfig, parse_config
from harvester.serve.environment import node_variables, process_variables
from harvester.serve.supervisor import STOP_MARGIN_S

OPERATE = Path(__file__).parents[2] / "docs" / "operate"
SECRET = "harvester-ray"
TOKEN = [
    {"name": "RAY_AUTH_MODE", "value": "token"},
    {"name": "RAY_AUTH_TOKEN", "valueFrom": {"secretKeyRef": {"name": SECRET, "key": "auth_token"}}},
]
CRD = "HARVESTER_KUBERAY_CRD"  # path of KubeRay's ray.io_rayservices.yaml, which no package index carries


def manifests() -> dict[str, Any]:
    return {doc["kind"]: doc for doc in yaml.safe_load_all((OPERATE / "kuberay" / "rayservice.yaml").read_text())}


def values() -> dict[str, Any]:
    return dict(yaml.safe_load((OPERATE / "kuberay" / "values.yaml").read_text()))


def pods() -> dict[str, dict[str, Any]]:
    cluster = manifests()["RayService"]["spec"]["rayClusterConfig"]
    groups = {"head": cluster["headGroupSpec"], **{group["groupName"]: group for group in cluster["workerGroupSpecs"]}}
    return {name: group["template"]["spec"] for name, group in groups.items()}


def test_hadolint_accepts_the_image_file() -> None:
    hadolint = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([hadolint, OPERATE / "Containerfile"], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_image_runs_as_a_user_of_its_own_and_says_whether_it_is_well() -> None:
    lines = (OPERATE / "Containerfile").read_text().splitlines()
    said = dict(line.split(" ", 1) for line in lines if " " in line and not line.startswith((" ", "#")))
    assert said["USER"] == "1000"
    assert "healthcheck" in said["HEALTHCHECK"]
    assert sum(line.startswith("FROM ") for line in lines) == 3
    assert said["STOPSIGNAL"] == "SIGTERM"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_image_takes_the_releases_of_the_lock_file(device: str) -> None:
    text = (OPERATE / "Containerfile").read_text()
    expression = re.search(r'sed -n "(s/.+?/p)"', text)
    assert expression is not None
    lock = OPERATE.parents[1] / "requirements" / f"{device}.lock"
    told = subprocess.run(["sed", "-n", expression[1], str(lock)], capture_output=True, text=True, check=True).stdout.split()
    assert len(told) == sum("==" in line for line in lock.read_text().splitlines())
    assert all(re.fullmatch(r"[a-z0-9._-]+==\S+", one) for one in told)


def test_the_image_has_the_driver_of_a_ledger_in_a_database_and_extras_are_the_packages() -> None:
    text = (OPERATE / "Containerfile").read_text()
    (extras,) = re.findall(r"^ARG EXTRAS=(.*)$", text, re.MULTILINE)
    assert '"${wheel}[${DEVICE}${EXTRAS:+,${EXTRAS}}]"' in text
    known = tomllib.loads((OPERATE.parents[1] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert "postgres" in extras.split(",")
    assert set(extras.split(",")) <= set(known)


def test_the_image_is_given_every_file_that_it_copies() -> None:
    ignore = (OPERATE / "Containerfile.dockerignore").read_text().splitlines()
    given = {line[1:] for line in ignore if line.startswith("!")}
    copied = [
        line.split()[1:-1]
        for line in (OPERATE / "Containerfile").read_text().splitlines()
        if line.startswith("COPY ") and "--from" not in line
    ]
    wanted = {name for names in copied for name in names}
    assert wanted == given
    assert all((OPERATE.parents[1] / name).exists() for name in given)


@pytest.mark.filterwarnings("ignore")  # of Ray's own, which it gives while it is imported
def test_ray_accepts_the_applications_and_each_is_built_by_a_function_that_is_there() -> None:
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(yaml.safe_load(manifests()["RayService"]["spec"]["serveConfigV2"]))
    assert {app.name: app.route_prefix for app in schema.applications} == {
        "chat": "/", "jobs": "/api", "files": "/v1/files", "batches": "/v1/batches"
    }  # fmt: skip
    for app in schema.applications:
        assert app.import_path is not None
        module, _, name = app.import_path.partition(":")
        build = getattr(importlib.import_module(module), name)
        (parameter,) = inspect.signature(build, eval_str=True).parameters.values()
        parameter.annotation(**app.args)


def test_the_config_in_the_manifest_is_one() -> None:
    config = parse_config(yaml.safe_load(manifests()["ConfigMap"]["data"]["harvester.yaml"]), "ConfigMap")
    assert config.host == "0.0.0.0"
    workers = manifests()["RayService"]["spec"]["rayClusterConfig"]["workerGroupSpecs"]
    assert config.replicas.min == config.replicas.max == sum(group["replicas"] for group in workers)


@pytest.mark.parametrize("pod", ["head", "gpu"])
def test_the_containers_have_what_harvester_env_prints(pod: str) -> None:
    (container,) = pods()[pod]["containers"]
    printed = process_variables() | node_variables()
    assert {one["name"]: one["value"] for one in container["env"]} == printed
    given = [one for one in values()["head" if pod == "head" else "worker"]["containerEnv"] if one not in TOKEN]
    assert {one["name"]: one["value"] for one in given} == printed


def test_rays_ports_ask_for_a_token() -> None:
    """KubeRay makes the token of a `RayService`; the chart has no value for it, so its containers take one of a secret."""
    assert manifests()["RayService"]["spec"]["rayClusterConfig"]["authOptions"] == {"mode": "token"}
    head, worker = values()["head"], values()["worker"]
    assert [one["name"] for one in head["sidecarContainers"]] == ["harvester"]
    for environment in (head["containerEnv"], worker["containerEnv"], *(one["env"] for one in head["sidecarContainers"])):
        assert [one for one in environment if one["name"].startswith("RAY_AUTH")] == TOKEN
    assert f"kubectl create secret generic {SECRET} --from-literal=auth_token=" in (OPERATE / "kuberay" / "values.yaml").read_text()


def test_the_image_has_what_kuberays_probes_call() -> None:
    (installed,) = re.findall(r"apt-get install (.*) \\", (OPERATE / "Containerfile").read_text())
    assert "wget" in installed.split()


@pytest.mark.parametrize("pod", ["head", "gpu"])
def test_the_state_is_a_folder_in_the_volume_whose_own_root_may_belong_to_root(pod: str) -> None:
    (image,) = re.findall(r"HARVESTER_STATE=(\S+)", (OPERATE / "Containerfile").read_text())
    (container,) = pods()[pod]["containers"]
    mounts = {Path(one["mountPath"]) for one in container["volumeMounts"]}
    applications = yaml.safe_load(manifests()["RayService"]["spec"]["serveConfigV2"])["applications"]
    told = {application["args"]["state"] for application in applications}
    assert told == {image}
    assert Path(image).parent in mounts
    assert Path(image) not in mounts


@pytest.mark.parametrize("pod", ["head", "gpu"])
def test_a_pod_is_given_time_to_let_chats_end_and_runs_as_the_images_user(pod: str) -> None:
    spec = pods()[pod]
    assert spec["terminationGracePeriodSeconds"] >= ServeConfig().drain_s + STOP_MARGIN_S
    assert spec["securityContext"]["runAsUser"] == 1000
    (container,) = spec["containers"]
    volumes = {one["name"] for one in spec["volumes"]}
    assert {one["name"] for one in container["volumeMounts"]} <= volumes


def test_manifest_and_values_are_of_the_ray_that_is_locked() -> None:
    lock = (OPERATE.parents[1] / "requirements" / "cuda.lock").read_text()
    found = re.search(r"^ray(?:\[.*?\])?==(\S+)", lock, re.MULTILINE)
    assert found is not None
    assert manifests()["RayService"]["spec"]["rayClusterConfig"]["rayVersion"] == found[1] == values()["head"]["rayVersion"]


def test_the_volumes_of_the_chart_are_those_that_its_containers_mount() -> None:
    for group in (values()["head"], values()["worker"]):
        names = {one["name"] for one in group["volumes"]}
        mounts = [*group["volumeMounts"], *(one for side in group.get("sidecarContainers", ()) for one in side["volumeMounts"])]
        assert {one["name"] for one in mounts} <= names


def _closed(schema: Any) -> Any:
    """Kubernetes prunes fields that its schema lacks, silently: here they are errors."""
    if isinstance(schema, list):
        return [_closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {name: _closed(one) for name, one in schema.items()}
    if closed.get("type") == "object" and "properties" in closed and not closed.get("x-kubernetes-preserve-unknown-fields"):
        closed["additionalProperties"] = False
    if closed.get("x-kubernetes-int-or-string"):
        closed.pop("type", None)
    return closed


@pytest.mark.skipif(CRD not in os.environ, reason=f"{CRD} does not name KubeRay's ray.io_rayservices.yaml")
def test_kuberays_schema_accepts_the_manifest() -> None:
    crd = yaml.safe_load(Path(os.environ[CRD]).read_text())
    (version,) = [one for one in crd["spec"]["versions"] if one["name"] == "v1"]
    spec = _closed(version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    found = [
        f"{list(error.path)}: {error.message}" for error in jsonschema.Draft7Validator(spec).iter_errors(manifests()["RayService"]["spec"])
    ]
    assert found == []
