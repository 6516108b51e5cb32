"""docker/ agrees with itself and with the code: commands, settings, ports, files, users, versions.

No container engine is needed. Rules of linters are not repeated here: `make lint` runs them.
"""

import configparser
import json
import os
import re
import stat
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import yaml

from tallybook.bookie.bookie import PART_CLOSE_SECONDS
from tallybook.core.access import Permission, Presented
from tallybook.core.certificate_names import CertificateName
from tallybook.core.errors import AccessDenied
from tallybook.core.settings import (
    BookieSettings,
    ConsoleSettings,
    GatewaySettings,
    OffloadSettings,
    RepairSettings,
    Settings,
)
from tallybook.runtime.security.process_security import open_security
from tallybook.runtime.settings import describe

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"
DEPLOYMENT = "".join((ROOT / "docs/operate" / name).read_text() for name in ("deployment.md", "kubernetes.md"))

SETTINGS: dict[tuple[str, ...], type[Settings]] = {
    ("bookie", "run"): BookieSettings,
    ("console", "run"): ConsoleSettings,
    ("gateway", "run"): GatewaySettings,
    ("offload", "run"): OffloadSettings,
    ("repair", "run"): RepairSettings,
}
# Variables that every command knows; the last one is for the health check of the image.
COMMON = {"TALLYBOOK_METADATA", "TALLYBOOK_SECURITY", "TALLYBOOK_HTTP_LISTEN"}


def config() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(interpolation=None)
    parser.read(ROOT / "setup.cfg")
    return parser


VERSION = config()["metadata"]["version"]


@cache
def compose() -> dict[str, Any]:
    # Variables have their defaults.
    return yaml.safe_load(re.sub(r"\$\{\w+:-(.*?)\}", r"\1", (DOCKER / "compose.yml").read_text()))


SERVICES: dict[str, dict[str, Any]] = compose()["services"]
OURS = {name: service for name, service in SERVICES.items() if service["image"].startswith("tallybook:")}
# Those that run a process of Tallybook, as opposed to a script or a command of an operator.
PROCESSES = {name: service for name, service in OURS.items() if tuple(service["command"][:2]) in SETTINGS}


def kind(service: dict[str, Any]) -> tuple[str, ...]:
    return tuple(service["command"][:2])


def settings_in_force(words: list[str], environment: dict[str, str]) -> dict[str, Any]:
    """The settings of a process with these arguments and variables; an invalid one is an error."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TALLYBOOK")}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "tallybook.cli", *words, "--print-config"],
        check=False,
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def unknown_variables(model: type[Settings], environment: dict[str, str]) -> set[str]:
    """Variables of ours that the process would ignore."""
    known = {setting.variable for setting in describe(model)} | COMMON
    return {name for name in environment if name.startswith("TALLYBOOK_")} - known


def http_of(settings: dict[str, Any]) -> str:
    """The address of health and metrics of a process; a console has one address for everything."""
    return settings.get("http_listen") or settings["listen"]


def port(address: str) -> int:
    return int(address.rpartition(":")[2])


def test_every_process_logs_in_json():
    words = {name: service["command"] for name, service in PROCESSES.items()}
    for name, workload in WORKLOADS.items():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        words[f"pod of {name}"] = container["args"]
    assert len(words) == len(PROCESSES) + len(SETTINGS)
    # That there are such options, others of these tests find out: they run the commands.
    assert [name for name, each in words.items() if "--log-format json" not in " ".join(each)] == []


# --- images -----------------------------------------------------------------------------------------------------------


def dockerfile() -> str:
    return (DOCKER / "Dockerfile").read_text()


def test_the_image_has_the_version_of_the_package_and_every_other_one_is_pinned():
    text = dockerfile()
    assert f'org.opencontainers.image.version="{VERSION}"' in text
    assert {service["image"] for service in OURS.values()} == {f"tallybook:{VERSION}"}
    assert re.search(r"^USER 10001:10001$", text, re.MULTILINE)
    assert 'CMD ["tallybook", "health"]' in text
    assert "STOPSIGNAL SIGTERM" in text
    images = {service["image"] for service in SERVICES.values()}
    images.add(re.findall(r"^ARG PYTHON_IMAGE=(\S+)", text, re.MULTILINE)[0])
    assert not [image for image in images if not re.search(r":[A-Za-z.-]*\d+[.\d-]*", image) or "latest" in image]


def test_an_image_is_made_of_every_part_and_of_nothing_else():
    told = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    inside = {line.removeprefix("!") for line in told if line.startswith("!")}
    parts = {
        line.split("=")[1].strip().split("/")[0] for line in config()["options"]["package_dir"].split("\n") if line
    }
    assert {name for name in inside if (ROOT / name).is_dir()} == parts
    assert all((ROOT / name).exists() for name in inside)
    assert "*" in told


def pins(name: str) -> set[tuple[str, str]]:
    return set(re.findall(r"^([a-z0-9-]+)==([^\s;]+)", (ROOT / name).read_text(), re.MULTILINE))


@pytest.mark.parametrize("name", ["requirements-run.lock", "requirements-build.lock"])
def test_an_image_runs_with_the_versions_that_everything_is_tested_with(name):
    assert pins(name) <= pins("requirements.lock")


def test_an_image_has_the_extras_that_it_is_said_to_have_and_no_tools_of_developers():
    parser = config()
    promised = re.search(r"the extras ((?:`[a-z0-9]+`|,| and|\s)+)", DEPLOYMENT)
    extras = re.findall(r"`([a-z0-9]+)`", promised[1])
    assert extras == ["s3", "traces", "zookeeper"]
    wanted, texts = set[str](), [parser["options"]["install_requires"]]
    texts += [parser["options.extras_require"][each] for each in extras]
    while texts:
        text = texts.pop()
        included = ",".join(re.findall(r"tallybook\[(.*)\]", text)).split(",")
        texts += [parser["options.extras_require"][each] for each in included if each]
        wanted |= set(re.findall(r"^([a-z0-9-]+)", text, re.MULTILINE)) - {"tallybook"}
    there = {name for name, _ in pins("requirements-run.lock")}
    assert wanted <= there
    assert not there & {"pytest", "mypy", "ruff", "pip", "setuptools"}


# --- compose ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(PROCESSES))
def test_a_service_is_a_command_that_there_is_with_settings_that_there_are(name):
    service = PROCESSES[name]
    environment = service["environment"]
    assert unknown_variables(SETTINGS[kind(service)], environment) == set()
    found = settings_in_force(service["command"], environment)
    assert found["security"] == "/security"
    assert http_of(found) == environment["TALLYBOOK_HTTP_LISTEN"]
    assert http_of(found).startswith("0.0.0.0:")
    if kind(service) == ("bookie", "run"):
        assert found["bookie_id"] == name
        assert found["advertise"] == f"{name}:{port(found['listen'])}"
        assert found["data_directory"].startswith("/data/")
        assert any(volume["target"] == "/data" for volume in service["volumes"])


def test_metadata_are_asked_for_where_zookeeper_listens():
    told = (DOCKER / "zookeeper/zoo.cfg").read_text()
    secure = re.findall(r"^secureClientPort=(\d+)$", told, re.MULTILINE)
    assert secure
    assert "\nclientPort=" not in told
    assert "\nssl.clientAuth=need\n" in told
    for service in PROCESSES.values():
        assert service["environment"]["TALLYBOOK_METADATA"] == f"zks://zookeeper:{secure[0]}/tallybook"


def test_every_process_is_scraped_at_its_port_with_tls():
    jobs = yaml.safe_load((DOCKER / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    ours = [job for job in jobs if job["job_name"].startswith("tallybook")]
    targets = {target for job in ours for static in job["static_configs"] for target in static["targets"]}
    http = {name: port(service["environment"]["TALLYBOOK_HTTP_LISTEN"]) for name, service in PROCESSES.items()}
    assert targets == {f"{name}:{each}" for name, each in http.items()}
    assert {job["scheme"] for job in ours} == {"https"}


def test_what_is_published_is_listened_on_and_is_for_this_host_only():
    for name, service in SERVICES.items():
        for published in service.get("ports", ()):
            host, outside, inside = published.split(":")
            assert (host, outside) == ("127.0.0.1", inside)
            if name in PROCESSES:
                listened = {port(value) for key, value in service["environment"].items() if key.endswith("LISTEN")}
                assert int(inside) in listened


def test_traces_have_a_way_out_to_one_place_over_tls_once_they_are_wanted():
    (wanted,) = re.findall(r"^    TALLYBOOK_TRACES=(\S+) docker compose .* --profile traces ", DEPLOYMENT, re.MULTILINE)
    endpoint = urlsplit(wanted.partition(",")[0])
    jaeger = SERVICES[endpoint.hostname]
    assert (endpoint.scheme, endpoint.port, jaeger["profiles"]) == ("https", 4318, ["traces"])
    assert all("http.tls" in word for word in jaeger["command"])
    for name, service in PROCESSES.items():
        traced = "traces" in SETTINGS[kind(service)].model_fields
        assert ("TALLYBOOK_TRACES" in service["environment"]) == traced, name
        if traced:
            assert service["environment"]["TALLYBOOK_TRACES"] == ""
            assert service["environment"]["OTEL_EXPORTER_OTLP_CERTIFICATE"] == "/security/ca.crt"
            assert set(service["networks"]) & set(jaeger["networks"])
    found = settings_in_force(["bookie", "run"], {**PROCESSES["bookie-1"]["environment"], "TALLYBOOK_TRACES": wanted})
    assert found["traces"] == wanted


def test_every_service_is_confined_and_can_be_waited_for():
    for name, service in SERVICES.items():
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert set(service["deploy"]["resources"]["limits"]) == {"cpus", "memory", "pids"}, name
        assert name in OURS or service["user"].split(":")[0] != "0", name
        # The image says it for ours.
        assert name in OURS or "healthcheck" in service, name
        for other, wanted in service.get("depends_on", {}).items():
            once = SERVICES[other]["restart"] == "no"
            expected = "service_completed_successfully" if once else "service_healthy"
            assert wanted["condition"] == expected, (name, other)


def needed(name: str) -> set[str]:
    """The services that have to be there before this one, near and far."""
    near = set(SERVICES[name].get("depends_on", ()))
    return near.union(*map(needed, near))


def test_the_image_is_built_once_and_before_everything_that_runs_it():
    (builder,) = [name for name, service in SERVICES.items() if "build" in service]
    for name, service in OURS.items():
        assert name == builder or builder in needed(name), name
        # No registry has an image of this name: there is nothing to pull.
        assert service["pull_policy"] == "never", name


def test_every_volume_and_every_file_is_there_and_a_process_sees_its_own_secrets_only():
    for name, service in SERVICES.items():
        for volume in service.get("volumes", ()):
            if volume["type"] == "bind":
                assert (DOCKER / volume["source"]).exists(), volume
                assert volume["read_only"] is True
            else:
                assert volume["source"] in compose()["volumes"]
            if volume["source"] == "security" and name != "secrets":
                owners = {"bucket": "minio"}
                assert volume["volume"]["subpath"] in {owners.get(name, name), "archive"}
                assert volume["read_only"] is True
            assert volume["source"] != "authority" or name == "secrets"


# --- credentials ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """The output of make.sh: a directory with ``authority`` and ``security``."""
    root = tmp_path_factory.mktemp("secrets")
    (root / "authority").mkdir()
    (root / "security").mkdir()
    make(root)
    return root


def make(root: Path) -> None:
    program = DOCKER / "security/make.sh"
    words = ["sh", program, root / "authority", root / "security", DOCKER / "security/access.toml"]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    subprocess.run(
        list(map(str, words)), env={**os.environ, "PATH": path}, check=True, timeout=240, capture_output=True
    )


def shown(directory: Path) -> tuple[CertificateName, ...]:
    """The names of a process's certificate."""
    return tuple(map(CertificateName.parse, open_security(str(directory), serves=False).identity.names))


def test_each_process_has_a_certificate_for_its_name_and_is_let_in_as_what_it_is(made):
    gateway = open_security(str(made / "security/gateway"), serves=True)
    for name in PROCESSES:
        security = open_security(str(made / "security" / name), serves=True)
        assert {name, "localhost"} <= set(security.identity.names)
        assert (made / "security" / name / "zookeeper.auth").exists()
    expected = {**dict.fromkeys(PROCESSES, "cluster"), "admin": "admins", "prometheus": "prometheus", "app": "apps"}
    for name, principal in expected.items():
        names = shown(made / "security" / name)
        assert gateway.principal(Presented(names)).name == principal
    for name in ("jaeger", "minio", "zookeeper"):
        names = shown(made / "security" / name)
        with pytest.raises(AccessDenied):
            gateway.principal(Presented(names)).check(Permission.READ)


def test_no_secret_is_world_readable(made):
    files = [path for path in made.rglob("*") if path.is_file() and "authority" not in path.relative_to(made).parts]
    assert files
    assert not [path for path in files if stat.S_IMODE(path.stat().st_mode) & 0o007]
    authority = [made / "authority" / name for name in ("ca.key", "token-signing-keys.json", "zookeeper")]
    assert not [path for path in authority if stat.S_IMODE(path.stat().st_mode) & 0o007]


def test_what_is_mounted_for_a_service_is_made_for_it(made):
    for service in SERVICES.values():
        for volume in service.get("volumes", ()):
            if "subpath" in volume.get("volume", {}):
                assert (made / "security" / volume["volume"]["subpath"]).is_dir()
    cfg = (DOCKER / "zookeeper/zoo.cfg").read_text()
    for path in re.findall(r"=/security/(\S+)", cfg):
        assert (made / "security/zookeeper" / path).exists()


def test_passwords_survive_another_run_and_certificates_are_renewed(made):
    kept = [made / "security" / name for name in ("minio/root-password", "archive/secret", "gateway/zookeeper.auth",
            "grafana/admin-password", "gateway/ca.crt")]  # fmt: skip
    before = [path.read_bytes() for path in kept]
    certificate = (made / "security/gateway/tls.crt").read_bytes()
    make(made)
    assert [path.read_bytes() for path in kept] == before
    assert (made / "security/gateway/tls.crt").read_bytes() != certificate
    assert all(len(content) >= 32 for content in before)


# --- Kubernetes -------------------------------------------------------------------------------------------------------

MANIFESTS = [
    manifest
    for path in sorted((DOCKER / "kubernetes").glob("*.yaml"))
    if path.name != "kustomization.yaml"
    for manifest in yaml.safe_load_all(path.read_text())
    if manifest
]
COMPONENT = "app.kubernetes.io/component"
HTTP = [{"port": "http"}]
WORKLOADS = {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] in {"StatefulSet", "Deployment"}}


def manifests(kind: str) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in MANIFESTS if each["kind"] == kind}


def pod_environment(container: dict[str, Any], pod: str) -> dict[str, str]:
    """The environment of a container, with the values that Kubernetes fills in for a pod of this name."""
    found: dict[str, str] = {}
    for source in container["envFrom"]:
        found |= manifests("ConfigMap")[source["configMapRef"]["name"]]["data"]
    for each in container.get("env", ()):
        value = each.get("value", pod)
        found[each["name"]] = re.sub(r"\$\((\w+)\)", lambda match: found[match[1]], value)
    return found


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_a_pod_is_a_command_that_there_is_with_settings_that_there_are(name):
    pod = WORKLOADS[name]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    environment = pod_environment(container, f"{name}-0")
    model = SETTINGS[tuple(container["args"][:2])]
    # Only offloaders need the location of the archive; readers take it from the metadata.
    assert unknown_variables(model, environment) <= {"TALLYBOOK_ARCHIVE"}
    found = settings_in_force(container["args"], environment)
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert port(http_of(found)) == ports["http"]
    assert ("grpc" in ports) == ("advertise" in found)
    if "advertise" in found:
        assert port(found["listen"]) == ports["grpc"] == port(found["advertise"])
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    claims = {each["metadata"]["name"] for each in WORKLOADS[name]["spec"].get("volumeClaimTemplates", ())}
    volumes = {each["name"] for each in pod["volumes"]} | claims
    assert {mount["name"] for mount in container["volumeMounts"]} == volumes
    assert found["security"] in mounts
    if name == "bookie":
        assert found["advertise"] == "bookie-0.bookie.tallybook.svc:7400"
        for path in (found["data_directory"], *found["journal_directories"]):
            assert str(Path(path).parent) in mounts


def test_pods_are_probed_over_tls_and_confined_and_their_secrets_are_not_world_readable():
    for name, workload in WORKLOADS.items():
        pod = workload["spec"]["template"]["spec"]
        (container,) = pod["containers"]
        pages = {"startupProbe": "/healthz", "readinessProbe": "/readyz", "livenessProbe": "/healthz"}
        for probe, page in pages.items():
            assert container[probe]["httpGet"] == {"path": page, "port": "http", "scheme": "HTTPS"}
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["fsGroup"] == container["securityContext"]["runAsUser"] == 10001
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] in manifests("ServiceAccount")
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        secrets = [volume[kind] for volume in pod["volumes"] for kind in ("secret", "projected") if kind in volume]
        assert [secret["defaultMode"] & 0o007 for secret in secrets] == [0] * len(secrets)
        assert name == "bookie" or f"{name}-security" in {secret.get("secretName") for secret in secrets}


def test_pods_have_the_time_that_a_clean_stop_takes():
    assert WORKLOADS["bookie"]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] > PART_CLOSE_SECONDS
    stop = GatewaySettings(metadata="zk://a:1/b").stop_ms / 1000
    pod = WORKLOADS["gateway"]["spec"]["template"]["spec"]
    pause = pod["containers"][0]["lifecycle"]["preStop"]["sleep"]["seconds"]
    assert pod["terminationGracePeriodSeconds"] > stop + pause


def test_one_pod_of_a_kind_may_go_at_a_time_and_selectors_meet_them():
    for name, workload in WORKLOADS.items():
        labels = workload["spec"]["template"]["metadata"]["labels"]
        budget = manifests("PodDisruptionBudget")[name]["spec"]
        assert budget == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
        assert manifests("NetworkPolicy")[name]["spec"]["podSelector"]["matchLabels"] == labels
    for name, service in manifests("Service").items():
        workload = WORKLOADS[name.removesuffix("-pods")]
        assert service["spec"]["selector"] == workload["spec"]["template"]["metadata"]["labels"]


def test_bookies_wait_for_an_operator_to_replace_them_and_all_others_replace_themselves():
    strategies = {
        name: (workload["spec"].get("updateStrategy") or workload["spec"].get("strategy") or {}).get("type")
        for name, workload in WORKLOADS.items()
    }
    assert strategies.pop("bookie") == "OnDelete"
    assert set(strategies.values()) <= {None, "RollingUpdate"}
    # What the commands of an upgrade go through is what there is.
    (bookies,) = re.findall(
        r"^    for bookie in ((?:bookie-\d+ ?)+); do\n +k delete pod \$bookie", DEPLOYMENT, re.MULTILINE
    )
    assert {f"{each}.bookie.tallybook.svc" for each in bookies.split()} == pod_names("bookie")


def test_kustomize_takes_every_manifest_and_the_version_of_the_package():
    told = yaml.safe_load((DOCKER / "kubernetes/kustomization.yaml").read_text())
    files = {path.name for path in (DOCKER / "kubernetes").glob("*.yaml")} - {"kustomization.yaml"}
    assert set(told["resources"]) == files
    assert told["images"] == [{"name": "tallybook", "newTag": VERSION}]


def pod_names(name: str) -> set[str]:
    """The DNS names of the pods of a workload; none if its pods are interchangeable."""
    spec = WORKLOADS[name]["spec"]
    if "serviceName" not in spec:
        return set()
    assert manifests("Service")[spec["serviceName"]]["spec"]["clusterIP"] == "None"
    return {f"{name}-{number}.{spec['serviceName']}.tallybook.svc" for number in range(spec["replicas"])}


def hosts(name: str) -> set[str]:
    """The host names in the certificate of a kind of process, as issued in docs/operate/kubernetes.md."""
    if name == "bookie":
        # Each has one of its own, made in a loop.
        pattern = r"^    for bookie in (.*); do\n +tallybook security issue authority (.*)$"
        names, line = re.findall(pattern, DEPLOYMENT, re.MULTILINE)[0]
        (named,) = re.findall(r"--host (\S+)", line)
        return {named.replace("$bookie", each) for each in names.split()}
    (line,) = re.findall(rf"^    tallybook security issue authority {name} (.*)$", DEPLOYMENT, re.MULTILINE)
    return set(re.findall(r"--host (\S+)", line))


def host(address: str) -> str:
    return address.rpartition(":")[0]


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_certificates_are_for_the_advertised_names_only(name):
    service = manifests("Service").get(name)
    entry = set() if service is None or "clusterIP" in service["spec"] else {f"{name}.tallybook.svc"}
    assert hosts(name) == pod_names(name) | entry
    (container,) = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
    told = [pod_environment(container, f"{name}-{number}").get("TALLYBOOK_ADVERTISE") for number in range(2)]
    if told != [None, None]:
        # Each has an address of its own: a client of one of them never reaches another.
        assert len(set(told)) == 2
        assert {host(each) for each in told} <= pod_names(name)


def test_the_console_asks_every_process_for_numbers_and_is_let_in():
    (container,) = WORKLOADS["console"]["spec"]["template"]["spec"]["containers"]
    asked = settings_in_force(container["args"], pod_environment(container, "console-0"))["processes"]
    others = sorted(set(WORKLOADS) - {"bookie", "console"})
    assert sorted(map(host, asked)) == sorted(name for each in others for name in pod_names(each))
    assert {port(each) for each in asked} == {7401}
    for name in (*others, "bookie"):
        let_in = [rule for rule in manifests("NetworkPolicy")[name]["spec"]["ingress"] if rule["ports"] == HTTP]
        assert {"matchLabels": {COMPONENT: "console"}} in [rule["from"][0].get("podSelector") for rule in let_in], name
    out = manifests("NetworkPolicy")["console"]["spec"]["egress"]
    of_others = {"matchExpressions": [{"key": COMPONENT, "operator": "In", "values": others}]}
    assert {"to": [{"podSelector": of_others}], "ports": HTTP} in out
    compose_console = settings_in_force(PROCESSES["console"]["command"], PROCESSES["console"]["environment"])
    assert sorted(compose_console["processes"]) == [f"{name}:7401" for name in others]


def test_every_traced_process_may_connect_to_a_collector():
    tracing = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "tracing"}}}
    assert re.search(r"TRACES: https://NAME\.tracing\.svc:4318\S*` to the config\s+map\s+`cluster`", DEPLOYMENT)
    for name, workload in WORKLOADS.items():
        (container,) = workload["spec"]["template"]["spec"]["containers"]
        # Also those without the setting: they are clients of the cluster, and a client goes by the variable.
        traced = {"configMapRef": {"name": "cluster"}} in container["envFrom"]
        out = manifests("NetworkPolicy")[name]["spec"]["egress"]
        assert ({"to": [tracing], "ports": [{"port": 4318}]} in out) == traced, name


def test_every_pod_is_scraped_under_a_name_that_its_certificate_is_for():
    told = yaml.safe_load((DOCKER / "kubernetes/monitoring/prometheus.yml").read_text())
    jobs = {job["job_name"].removeprefix("tallybook-"): job for job in told["scrape_configs"]}
    assert set(jobs) == set(WORKLOADS)
    for name, job in jobs.items():
        (container,) = WORKLOADS[name]["spec"]["template"]["spec"]["containers"]
        (http,) = [each["containerPort"] for each in container["ports"] if each["name"] == "http"]
        assert job["scheme"] == "https"
        if pod_names(name):
            (group,) = job["static_configs"]
            assert set(group["targets"]) == {f"{each}:{http}" for each in pod_names(name)}
        else:
            (group,) = job["dns_sd_configs"]
            assert (group["names"], group["type"], group["port"]) == ([f"{name}-pods.tallybook.svc"], "A", http)
            assert manifests("Service")[f"{name}-pods"]["spec"]["clusterIP"] == "None"
            assert job["tls_config"]["server_name"] in hosts(name)
        paths = {job["tls_config"][each] for each in ("ca_file", "cert_file", "key_file")}
        assert paths == {f"/etc/prometheus/tallybook/{each}" for each in ("ca.crt", "tls.crt", "tls.key")}
        assert "monitoring" in str(manifests("NetworkPolicy")[name]["spec"]["ingress"])
    assert "security issue authority prometheus --role reader --name prometheus" in DEPLOYMENT


def test_a_bookie_is_replaced_by_a_pod_with_its_settings_its_volumes_and_its_rights():
    text = (DOCKER / "kubernetes/by-hand/replacing-a-bookie.yaml").read_text()
    (recipe,) = re.findall(r'sed "(.*)" docker/kubernetes/by-hand/replacing-a-bookie.yaml', DEPLOYMENT)
    for word, value in (("THE-BOOKIE", "bookie-1"), ("THE-NODE", "node-7"), ("THE-IMAGE", "tallybook:1")):
        assert f"s|{word}|$" in recipe
        # As sed does it: the first one of a line.
        text = "".join(line.replace(word, value, 1) for line in text.splitlines(keepends=True))
    pod, policy = yaml.safe_load_all(text)
    spec, usual = pod["spec"], WORKLOADS["bookie"]["spec"]["template"]["spec"]
    (container,), (bookie,) = spec["containers"], usual["containers"]
    assert "THE-" not in text
    assert (spec["nodeName"], container["image"], container["args"]) == (
        "node-7",
        "tallybook:1",
        ["bookie", "init", "--replace"],
    )
    given, known = pod_environment(container, ""), pod_environment(bookie, "bookie-1")
    assert given == {each: known[each] for each in given}
    assert set(known) - set(given) == {"TALLYBOOK_LISTEN", "TALLYBOOK_TCP_LISTEN", "TALLYBOOK_ADVERTISE"}
    usual_mounts = [{key: each[key] for key in each if key != "subPathExpr"} for each in bookie["volumeMounts"]]
    assert container["volumeMounts"] == usual_mounts
    assert container["securityContext"] == bookie["securityContext"]
    assert spec["securityContext"] == usual["securityContext"]
    claims = {each["name"]: each["persistentVolumeClaim"]["claimName"] for each in spec["volumes"][2:]}
    templates = [each["metadata"]["name"] for each in WORKLOADS["bookie"]["spec"]["volumeClaimTemplates"]]
    assert claims == {each: f"{each}-bookie-1" for each in templates}
    tmp, security = spec["volumes"][:2]
    assert tmp == usual["volumes"][0]
    # Its own secret, as a whole.
    assert security == {"name": "security", "secret": {"secretName": "bookie-1-security", "defaultMode": 0o440}}
    # It is none of the bookies to those that look for bookies, and the way to the metadata is open.
    labels = pod["metadata"]["labels"]
    assert policy["spec"]["podSelector"]["matchLabels"] == labels
    assert labels[COMPONENT] not in WORKLOADS
    assert set(map(str, policy["spec"]["egress"])) <= set(
        map(str, manifests("NetworkPolicy")["bookie"]["spec"]["egress"])
    )
    # A volume of a node cannot be had by one pod alone, and both pods have it.
    for each in WORKLOADS["bookie"]["spec"]["volumeClaimTemplates"]:
        assert each["spec"]["accessModes"] == ["ReadWriteOnce"]
