"""The files of ``deploy/``: linters take them, and every command, setting, port and path in them is one that exists."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml
from prometheus_client.exposition import generate_latest

from megatalker import Checkpoint, Settings
from megatalker.cli.main import app as commands
from megatalker.serving.server.app import create_app
from megatalker.serving.server.lazy_engine import LazyEngine
from megatalker.serving.server.telemetry import Metrics
from megatalker.settings import ServerSettings, known_keys
from megatalker_benchmarks.fleet import options_of
from snippets import snippets

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy"
DOCKERFILE = (FOLDER / "Dockerfile").read_text()
UNIT = (FOLDER / "megatalker.service").read_text()
COMPOSE = yaml.safe_load((FOLDER / "compose.yaml").read_text())
OBJECTS = list(yaml.safe_load_all((FOLDER / "kubernetes.yaml").read_text()))
RAY = yaml.safe_load((FOLDER / "ray-serve.yaml").read_text())
PORT = ServerSettings().port
SECRET = "long-enough-to-be-a-secret"


def kubernetes(kind: str) -> dict[str, Any]:
    (found,) = [one for one in OBJECTS if one["kind"] == kind]
    return found


POD = kubernetes("Deployment")["spec"]["template"]
(CONTAINER,) = POD["spec"]["containers"]
CONFIGURED = kubernetes("ConfigMap")["data"]["megatalker.toml"]


def instruction(name: str) -> str:
    """The last of that name in the Dockerfile, on one line."""
    return re.findall(rf"^{name} (.*)$", DOCKERFILE.replace("\\\n", ""), re.MULTILINE)[-1]


def tool(name: str) -> str:
    """A program of a package of the extra ``dev``, or of the machine."""
    found = shutil.which(name, path=f"{Path(sys.executable).parent}") or shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


# ---- linters


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    done = subprocess.run([tool("hadolint"), str(FOLDER / "Dockerfile")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("one", OBJECTS, ids=lambda one: one["kind"])
def test_kubernetes_objects_follow_its_schemas(one: dict[str, Any]) -> None:
    schemas = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    schemas.validate(one, schemas.latest_version(), strict=True)


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "megatalker.service"
    unit.write_text(UNIT.replace("/opt/megatalker/bin/megatalker", sys.executable))
    done = subprocess.run([tool("systemd-analyze"), "verify", str(unit)], capture_output=True, text=True, check=False)
    about = [line for line in done.stderr.splitlines() if "megatalker" in line]
    assert (done.returncode, about) == (0, [])


def test_compose_services_are_built_from_the_dockerfile() -> None:
    for service in COMPOSE["services"].values():
        build = service["build"]
        context = (FOLDER / build["context"]).resolve()
        assert (context, context / build["dockerfile"]) == (ROOT, FOLDER / "Dockerfile")
        assert build["args"].keys() <= set(re.findall(r"^ARG (\w+)", DOCKERFILE, re.MULTILINE))
        named = {volume.partition(":")[0] for volume in service["volumes"] if not volume.startswith(".")}
        assert named <= COMPOSE["volumes"].keys()


# ---- what they say to megatalker


def command_lines() -> dict[str, list[str]]:
    """Arguments of ``megatalker``, by where they stand."""
    assert yaml.safe_load(instruction("ENTRYPOINT")) == ["megatalker"]
    found = {"Dockerfile": yaml.safe_load(instruction("CMD")), "kubernetes": CONTAINER["args"]}
    found |= {f"compose {name}": one["command"] for name, one in COMPOSE["services"].items()}
    (start,) = re.findall(r"^ExecStart=(.*)$", UNIT, re.MULTILINE)
    program, *arguments = shlex.split(start)
    assert Path(program).name == "megatalker"
    return found | {"systemd": arguments}


@pytest.mark.parametrize(("command", "arguments"), [(line[0], line[1:]) for line in command_lines().values()])
def test_command_lines_parse(command: str, arguments: list[str]) -> None:
    group = typer.main.get_command(commands)
    group.commands[command].make_context(command, list(arguments))


PAGE = ROOT / "docs" / "deployment.md"
SAID = [line for snippet in snippets(PAGE) for line in snippet.text.splitlines()]


@pytest.mark.parametrize("line", [line for line in SAID if line.startswith("megatalker ")])
def test_commands_of_the_page_parse(line: str) -> None:
    _, command, *arguments = shlex.split(line)
    if command == "bench":
        entries = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
        assert arguments[0] in entries["megatalker.benchmarks"]
        assert arguments[0] == "fleet"
        assert options_of(arguments[1:]).measured == Path("one/load.json")
        return
    typer.main.get_command(commands).commands[command].make_context(command, arguments)


def test_the_page_s_arguments_for_ray_are_settings() -> None:
    given = [re.findall(r" (\w+)=(\S+)", line.partition(":application")[2]) for line in SAID if "serve run" in line]
    assert len(given) == 2
    for arguments in given:
        assert Settings.read(**dict(arguments)).device in ("cpu", "cuda")


def test_every_variable_is_a_setting() -> None:
    known = known_keys(Settings)
    for file in (*FOLDER.iterdir(), PAGE):
        for name in re.findall(r"MEGATALKER_(\w+)", file.read_text()):
            assert name.lower().replace("__", ".") in known, f"{file.name}: MEGATALKER_{name}"


def environments() -> dict[str, dict[str, str]]:
    """Settings in the environment, by where they stand; secrets have a value that is long enough."""
    image = dict(pair.split("=", 1) for pair in instruction("ENV").split())
    found = {"Dockerfile": image}
    found |= {f"compose {name}": image | one["environment"] for name, one in COMPOSE["services"].items()}
    found["kubernetes"] = image | {one["name"]: SECRET for one in CONTAINER["env"]}
    unit = re.findall(r"^Environment=(.*)$", UNIT, re.MULTILINE)
    found["systemd"] = dict(pair.split("=", 1) for line in unit for pair in line.split())
    return found


def read(place: str, monkeypatch: pytest.MonkeyPatch, folder: Path) -> Settings:
    """The settings that hold there."""
    monkeypatch.chdir(folder)
    for name, value in environments()[place].items():
        if name.startswith("MEGATALKER_"):
            monkeypatch.setenv(name, SECRET if value.startswith("${") else value)
    if place == "kubernetes":
        (folder / "megatalker.toml").write_text(CONFIGURED)
    return Settings.read()


def test_the_pod_is_told_of_no_services_and_starts_where_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The cluster names a Service in the variables of every pod of its namespace, unless the pod says no."""
    assert POD["spec"]["enableServiceLinks"] is False
    name, (port,) = kubernetes("Service")["metadata"]["name"].upper(), kubernetes("Service")["spec"]["ports"]
    monkeypatch.setenv(f"{name}_SERVICE_HOST", "10.43.7.12")
    monkeypatch.setenv(f"{name}_SERVICE_PORT_{port['name'].upper()}", str(port["port"]))
    monkeypatch.setenv(f"{name}_PORT", f"tcp://10.43.7.12:{port['port']}")
    assert read("kubernetes", monkeypatch, tmp_path).server.port == PORT


@pytest.mark.parametrize("place", environments())
def test_the_settings_can_be_read(place: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = read(place, monkeypatch, tmp_path)
    assert settings.server.log_format == "json"
    assert (settings.server.host == "0.0.0.0") is (place != "systemd"), "a container serves its network"


def test_ray_is_given_settings_and_a_builder_that_exists() -> None:
    (deployed,) = RAY["applications"]
    assert Settings.read(**deployed["args"]).ray.max_replicas == 8
    module, name = deployed["import_path"].split(":")
    source = (ROOT / "core" / Path(*module.split("."))).with_suffix(".py").read_text()
    assert f"\ndef {name}(args: dict[str, Any])" in source


# ---- time to stop


def seconds(text: str) -> float:
    return float(text.removesuffix("s"))


@pytest.mark.parametrize(
    ("place", "grace_s"),
    [
        *((f"compose {name}", seconds(one["stop_grace_period"])) for name, one in COMPOSE["services"].items()),
        ("systemd", seconds(re.findall(r"^TimeoutStopSec=(.*)$", UNIT, re.MULTILINE)[0])),
        (
            "kubernetes",
            POD["spec"]["terminationGracePeriodSeconds"] - CONTAINER["lifecycle"]["preStop"]["sleep"]["seconds"],
        ),
    ],
)
def test_no_server_is_killed_while_it_drains(
    place: str, grace_s: float, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    server = read(place, monkeypatch, tmp_path).server
    assert grace_s >= server.drain_timeout_s + server.shutdown_timeout_s


# ---- ports, paths, metrics


def test_ports_are_the_server_s() -> None:
    assert instruction("EXPOSE") == str(PORT)
    assert [one["containerPort"] for one in CONTAINER["ports"]] == [PORT]
    assert POD["metadata"]["annotations"]["prometheus.io/port"] == str(PORT)
    for service in COMPOSE["services"].values():
        assert [one.split(":")[-1] for one in service["ports"]] == [str(PORT)]
    names = {one["name"] for one in CONTAINER["ports"]}
    assert {one["targetPort"] for one in kubernetes("Service")["spec"]["ports"]} <= names


@pytest.fixture
def engine(tiny_custom_voice: Checkpoint) -> LazyEngine:
    return LazyEngine(Settings(), tiny_custom_voice)


def test_probes_ask_for_routes(engine: LazyEngine) -> None:
    routes = create_app(engine).openapi()["paths"]
    probes = {kind: CONTAINER[f"{kind}Probe"]["httpGet"] for kind in ("startup", "liveness", "readiness")}
    assert {kind: probe["path"] for kind, probe in probes.items()} == {
        "startup": "/ready",
        "liveness": "/live",
        "readiness": "/ready",
    }
    (healthy,) = re.findall(rf"http://localhost:{PORT}([/\w]+)", instruction("HEALTHCHECK"))
    scraped = POD["metadata"]["annotations"]["prometheus.io/path"]
    assert {healthy, scraped, *(probe["path"] for probe in probes.values())} <= routes.keys()


def test_the_autoscaler_asks_for_metrics_and_for_no_more_than_there_are_rows(engine: LazyEngine) -> None:
    pods = [one["pods"] for one in kubernetes("HorizontalPodAutoscaler")["spec"]["metrics"]]
    targets = {one["metric"]["name"]: float(one["target"]["averageValue"]) for one in pods}
    text = generate_latest(Metrics(engine).registry).decode()
    adapter = yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text())
    (offered,) = re.findall(r'__name__=~"([^"]+)"', adapter["rules"]["custom"][0]["seriesQuery"])
    for name in targets:
        assert re.search(rf"^{name} ", text, re.MULTILINE), f"/metrics has no {name}"
        assert re.fullmatch(offered, name)
    assert targets["megatalker_engine_active"] == 0.75 * tomllib.loads(CONFIGURED)["max_streams"]


def test_objects_of_kubernetes_find_each_other() -> None:
    labels = POD["metadata"]["labels"]
    assert kubernetes("Service")["spec"]["selector"] == labels
    assert kubernetes("PodDisruptionBudget")["spec"]["selector"]["matchLabels"] == labels
    assert kubernetes("Deployment")["spec"]["selector"]["matchLabels"] == labels
    target = kubernetes("HorizontalPodAutoscaler")["spec"]["scaleTargetRef"]
    assert (target["kind"], target["name"]) == ("Deployment", kubernetes("Deployment")["metadata"]["name"])
    volumes = {one["name"]: one for one in POD["spec"]["volumes"]}
    assert {one["name"] for one in CONTAINER["volumeMounts"]} == volumes.keys()
    claim = volumes["cache"]["persistentVolumeClaim"]["claimName"]
    assert claim == kubernetes("PersistentVolumeClaim")["metadata"]["name"]
    (settings,) = [one["mountPath"] for one in CONTAINER["volumeMounts"] if one["name"] == "settings"]
    assert f"{settings}/megatalker.toml" in CONTAINER["args"]


def test_the_build_sees_the_sources_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    needed = {Path(one).parts[0] for one in packages} | {"Makefile", "constraints", "pyproject.toml"}
    needed |= {project["project"]["readme"], *project["project"]["license-files"]}
    lines = (FOLDER / "Dockerfile.dockerignore").read_text().splitlines()
    assert needed == {line[1:] for line in lines if line.startswith("!")}
    (extras,) = re.findall(r"then extras=([\w,]+); else extras=server; fi", instruction("RUN") + DOCKERFILE)
    assert set(extras.split(",")) <= project["project"]["optional-dependencies"].keys()
