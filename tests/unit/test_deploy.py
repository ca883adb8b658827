"""The files in `deploy/` have the form that their readers expect, and the settings of the code.

No package has the schema of RayCluster: its own fields are compared with a list that was written by
hand from KubeRay's types, its pod templates with the schema of Kubernetes.
"""

from __future__ import annotations

import configparser
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from oubliette.cluster.environment import SETTINGS, TOKEN_FILE
from oubliette.config.schema import ClusterConfig, ServerConfig

DEPLOY = Path(__file__).parents[2] / "deploy"
MANIFESTS = DEPLOY / "kubernetes" / "oubliette.yaml"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
KUBERNETES = "1.37"

CLUSTER_FIELDS = {
    "rayVersion",
    "enableInTreeAutoscaling",
    "headGroupSpec",
    "workerGroupSpecs",
}
HEAD_FIELDS = {"serviceType", "rayStartParams", "template"}
WORKER_FIELDS = {
    "groupName",
    "replicas",
    "minReplicas",
    "maxReplicas",
    "rayStartParams",
    "template",
}


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(MANIFESTS.read_text(encoding="utf-8")))


def manifest(kind: str, name: str) -> dict[str, Any]:
    (found,) = [m for m in manifests() if m["kind"] == kind and m["metadata"]["name"] == name]
    return found


def ray_cluster() -> dict[str, Any]:
    return manifest("RayCluster", "oubliette")["spec"]


def templates() -> dict[str, dict[str, Any]]:
    spec = ray_cluster()
    (workers,) = spec["workerGroupSpecs"]
    return {"head": spec["headGroupSpec"]["template"], "node": workers["template"]}


def main_container(template: dict[str, Any]) -> dict[str, Any]:
    (container,) = template["spec"]["containers"]
    return container


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {each["name"]: each.get("value", each.get("valueFrom")) for each in container["env"]}


def settings_of(file: Path) -> dict[str, str]:
    lines = file.read_text(encoding="utf-8").splitlines()
    return dict(line.split("=", 1) for line in lines if line and not line.startswith("#"))


# ---------------------------------------------------------------- schemas
@pytest.mark.requires("kubernetes-schemas")
@pytest.mark.parametrize(
    "found", [m for m in manifests() if m["kind"] != "RayCluster"], ids=lambda m: m["kind"]
)
def test_each_manifest_is_of_its_schema(found: dict[str, Any]) -> None:
    import kubernetes_validate

    kubernetes_validate.validate(found, KUBERNETES, strict=True)


@pytest.mark.requires("kubernetes-schemas")
@pytest.mark.parametrize("which", ["head", "node"])
def test_the_pods_of_the_cluster_are_of_their_schema(which: str) -> None:
    import kubernetes_validate

    template = templates()[which]
    pod = {"apiVersion": "v1", "kind": "Pod", **template}
    kubernetes_validate.validate(pod, KUBERNETES, strict=True)


@pytest.mark.requires("kubernetes-schemas")
def test_the_check_sees_a_field_that_does_not_exist() -> None:
    import kubernetes_validate

    service = manifest("Service", "oubliette")
    service["spec"]["selektor"] = {}
    with pytest.raises(kubernetes_validate.ValidationError, match="selektor"):
        kubernetes_validate.validate(service, KUBERNETES, strict=True)


def test_the_cluster_has_known_fields_alone() -> None:
    spec = ray_cluster()
    assert spec.keys() == CLUSTER_FIELDS
    assert spec["headGroupSpec"].keys() == HEAD_FIELDS
    for group in spec["workerGroupSpecs"]:
        assert group.keys() == WORKER_FIELDS
        assert group["minReplicas"] <= group["replicas"] <= group["maxReplicas"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        assert all(isinstance(value, str) for value in group["rayStartParams"].values())


# ---------------------------------------------------------------- what the code expects
def test_rays_settings_are_those_of_the_code() -> None:
    assert manifest("ConfigMap", "oubliette-ray")["data"] == SETTINGS
    for template in templates().values():
        container = main_container(template)
        assert {"configMapRef": {"name": "oubliette-ray"}} in container["envFrom"]
        assert variables(container).keys().isdisjoint(SETTINGS)
    file = settings_of(DEPLOY / "systemd" / "ray.env")
    assert Path(file.pop("RAY_AUTH_TOKEN_PATH")).name == TOKEN_FILE
    assert file == SETTINGS


def test_the_head_alone_keeps_rays_database() -> None:
    head, node = (variables(main_container(templates()[each])) for each in ("head", "node"))
    assert head["RAY_gcs_storage"] == "rocksdb"
    mounts = {
        m["mountPath"]: m["name"] for m in main_container(templates()["head"])["volumeMounts"]
    }
    volumes = {v["name"]: v for v in templates()["head"]["spec"]["volumes"]}
    assert "persistentVolumeClaim" in volumes[mounts[head["RAY_gcs_storage_path"]]]
    assert not any("gcs_storage" in name for name in node)


def test_the_database_comes_from_a_secret() -> None:
    node = variables(main_container(templates()["node"]))
    assert node["OUBLIETTE_STORE__DATABASE"]["secretKeyRef"]["key"] == "database"
    assert not [m for m in manifests() if m["kind"] == "Secret"]


@pytest.mark.parametrize("which", ["head", "node"])
def test_the_token_is_a_copy_that_its_owner_alone_reads(which: str) -> None:
    spec = templates()[which]["spec"]
    (copy,) = spec["initContainers"]
    script = manifest("ConfigMap", "oubliette-scripts")["data"]["copy-token.sh"]
    path = variables(main_container(templates()[which]))["RAY_AUTH_TOKEN_PATH"]
    assert copy["command"] == ["bash", "/scripts/copy-token.sh"]
    assert f"chmod 0600 {path}" in script
    assert Path(path).name == TOKEN_FILE
    secret = next(volume["secret"] for volume in spec["volumes"] if "secret" in volume)
    assert secret["defaultMode"] == 0o400
    assert not any(m["mountPath"] == "/secret" for m in spec["containers"][0]["volumeMounts"])


@pytest.mark.parametrize("which", ["head", "node"])
def test_no_container_is_root_or_writes_beside_its_volumes(which: str) -> None:
    spec = templates()[which]["spec"]
    assert spec["securityContext"]["runAsNonRoot"] is True
    for container in spec["containers"] + spec["initContainers"]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_a_pod_has_more_time_to_end_than_its_turns() -> None:
    drain = ClusterConfig().drain_seconds
    node = templates()["node"]["spec"]
    assert (
        float(variables(main_container(templates()["node"]))["OUBLIETTE_CLUSTER__DRAIN_SECONDS"])
        == drain
    )
    assert node["terminationGracePeriodSeconds"] >= drain + 60
    hook = main_container(templates()["node"])["lifecycle"]["preStop"]["exec"]["command"]
    assert hook == ["bash", "/scripts/drain.sh"]


def test_the_probes_ask_the_server_under_a_name_that_it_accepts() -> None:
    container = main_container(templates()["node"])
    env = variables(container)
    (port,) = container["ports"]
    assert int(env["OUBLIETTE_SERVER__PORT"]) == port["containerPort"]
    assert "port" in ServerConfig.__struct_fields__
    for probe, path in (("startup", "/health"), ("liveness", "/health"), ("readiness", "/ready")):
        get = container[f"{probe}Probe"]["httpGet"]
        assert (get["path"], get["port"]) == (path, port["name"])
        assert get["httpHeaders"] == [{"name": "Host", "value": "localhost"}]


def test_service_budget_and_policies_mean_the_pods_that_there_are() -> None:
    labels = {name: t["metadata"]["labels"].items() for name, t in templates().items()}
    service = manifest("Service", "oubliette")["spec"]
    budget = manifest("PodDisruptionBudget", "oubliette-nodes")["spec"]
    http = manifest("NetworkPolicy", "oubliette-http")["spec"]
    for selector in (
        service["selector"],
        budget["selector"]["matchLabels"],
        http["podSelector"]["matchLabels"],
    ):
        assert selector.items() <= labels["node"]
        assert not selector.items() <= labels["head"]
    ray = manifest("NetworkPolicy", "oubliette-ray")["spec"]
    (rule,) = ray["ingress"]
    (source,) = rule["from"]
    for selector in (ray["podSelector"], source["podSelector"]):
        assert all(selector["matchLabels"].items() <= each for each in labels.values())
    assert [each["port"] for each in http["ingress"][0]["ports"]] == ["http"]


@pytest.mark.parametrize("script", ["copy-token.sh", "run-node.sh", "drain.sh"])
def test_a_script_is_valid_bash(script: str) -> None:
    text = manifest("ConfigMap", "oubliette-scripts")["data"][script]
    subprocess.run(["bash", "-n"], input=text, text=True, check=True, timeout=10)


STAND_IN = """#!/bin/bash
trap 'kill $! 2>/dev/null; echo "$(basename "$0") ends" >> {events}; exit 0' TERM
echo "$(basename "$0") $*" >> {events}
[ "$1" = serve ] || [ "$1" = start ] || exit 0
sleep 60 & wait $!
"""


def scripts_in(folder: Path) -> Path:
    """Write the scripts of the manifests, with their folders below this one; return the log."""
    events = folder / "events"
    for name, text in manifest("ConfigMap", "oubliette-scripts")["data"].items():
        moved = text
        for path in ("/var/lib/oubliette", "/run/oubliette", "/secret"):
            (folder / path[1:]).mkdir(parents=True, exist_ok=True)
            moved = moved.replace(path, str(folder / path[1:]))
        (folder / name).write_text(moved, encoding="utf-8")
    for program in ("oubliette", "ray"):
        path = folder / "bin" / program
        path.parent.mkdir(exist_ok=True)
        path.write_text(STAND_IN.format(events=events), encoding="utf-8")
        path.chmod(0o755)
    os.mkfifo(events)
    return events


def test_a_pod_ends_its_node_before_ray(tmp_path: Path) -> None:
    events = scripts_in(tmp_path)
    (tmp_path / "secret" / "ray-token").write_text("token", encoding="ascii")
    environment = {
        "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
        "NODE_NAME": "pod-1",
        "KUBERAY_GEN_RAY_START_CMD": "ray start --node-name=$NODE_NAME",
    }
    subprocess.run(["bash", str(tmp_path / "copy-token.sh")], check=True, timeout=10)
    token = tmp_path / "run" / "oubliette" / "ray-token"
    assert token.stat().st_mode & 0o777 == 0o600
    with subprocess.Popen(["bash", str(tmp_path / "run-node.sh")], env=environment) as process:
        try:
            log = os.fdopen(os.open(events, os.O_RDWR), encoding="utf-8")  # noqa: SIM115
            with log:
                home = tmp_path / "var" / "lib" / "oubliette"
                assert sorted([log.readline(), log.readline()]) == [
                    f"oubliette serve --home {home} --cluster auto --node pod-1\n",
                    "ray start --node-name=pod-1\n",
                ]
                assert (home / TOKEN_FILE).stat().st_mode & 0o777 == 0o600
                process.terminate()
                assert log.readline() == "oubliette ends\n"
                assert log.readline() == "ray ends\n"
            process.wait(10)
        finally:
            process.kill()


# ---------------------------------------------------------------- systemd
@pytest.mark.parametrize("unit", UNITS, ids=lambda unit: unit.name)
def test_a_unit_is_valid(unit: Path, tmp_path: Path) -> None:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment,method-assign]
    parsed.read(unit, encoding="utf-8")
    service = parsed["Service"]
    assert service["KillMode"] == "process"  # else agents would end with it
    assert service["User"] == "oubliette"
    assert service["EnvironmentFile"]
    if shutil.which("systemd-analyze") is None:
        return
    text = unit.read_text(encoding="utf-8").replace(service["ExecStart"].split()[0], "/bin/true")
    copy = tmp_path / unit.name
    copy.write_text(text, encoding="utf-8")
    done = subprocess.run(
        ["systemd-analyze", "verify", str(copy)],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
    )
    assert unit.name not in done.stderr, done.stderr
