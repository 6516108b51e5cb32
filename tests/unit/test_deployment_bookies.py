"""The bookies of Compose and Kubernetes: their number, and the secrets that each can read."""

from __future__ import annotations

import re

from tallybook.core.access import Role
from tallybook.repair.status.overview import DEFAULT_ENSEMBLE
from tallybook.runtime.security.authority import Subject

from .test_deployment import DEPLOYMENT, PROCESSES, WORKLOADS, kind, pod_environment


def test_each_bookie_sees_a_secret_of_its_own_and_no_other_one(authority, tmp_path):
    spec = WORKLOADS["bookie"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    (mount,) = [each for each in container["volumeMounts"] if each["name"] == "security"]
    (volume,) = [each["projected"] for each in pod["volumes"] if each["name"] == "security"]
    pods = [f"bookie-{number}" for number in range(spec["replicas"])]
    (variable,) = re.findall(r"^\$\((\w+)\)$", mount["subPathExpr"])
    assert [pod_environment(container, name)[variable] for name in pods] == pods
    assert [each["secret"]["name"] for each in volume["sources"]] == [f"{name}-security" for name in pods]
    # All that a security directory has, which is there or not.
    authority.issue(tmp_path / "bookie", Subject(Role.BOOKIE, "bookie-0"), days=1)
    files = {path.name for path in (tmp_path / "bookie").iterdir()} | {"zookeeper.auth"}
    for name, source in zip(pods, volume["sources"], strict=True):
        assert source["secret"]["optional"] is True
        assert {each["key"]: each["path"] for each in source["secret"]["items"]} == {
            file: f"{name}/{file}" for file in files
        }
    for loop in re.findall(r"^    for bookie in ((?:bookie-\d+ ?)+); do$", DEPLOYMENT, re.MULTILINE):
        assert loop.split() == pods
    (named,) = re.findall(r"^    for name in (.*); do$", DEPLOYMENT, re.MULTILINE)
    assert named.split() == [*pods, "gateway", "console", "offloader", "repair"]


def test_there_is_one_bookie_more_than_an_ensemble_has():
    assert WORKLOADS["bookie"]["spec"]["replicas"] == DEFAULT_ENSEMBLE + 1
    assert sum(kind(service) == ("bookie", "run") for service in PROCESSES.values()) == DEFAULT_ENSEMBLE + 1
