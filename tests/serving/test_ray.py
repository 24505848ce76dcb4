"""Replicas on Ray Serve. Tests that need Ray run with ``make ray-test``, which makes an environment with it."""

import importlib
import importlib.util
import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import httpx
import pytest
import yaml
from websockets.sync.client import connect

from megatalker.errors import SettingsError, UnsupportedError
from megatalker.serving.ray_scaling import replicas_wanted
from megatalker_benchmarks.ray_replicas import deployed, drain, kill_one
from waiting import HANG_S

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:ray[.].*")  # what Ray itself uses
ROOT = Path(__file__).parents[2]
needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="Ray is not installed; `make ray-test` makes an environment with it"
)


def test_without_ray_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.delitem(sys.modules, "megatalker.serving.ray", raising=False)
    with pytest.raises(UnsupportedError, match=r"ray is missing; pip install 'megatalker\[ray\]'"):
        importlib.import_module("megatalker.serving.ray")


@pytest.mark.parametrize(
    ("loads", "replicas", "wanted"),
    [
        ([], 2, 2),  # they warm up
        ([0.2, 0.0], 2, 0.2),
        ([1.0, 1.5], 2, 2.5),  # streams wait at one
        ([2.0], 3, 4.0),  # two replicas have just begun
    ],
)
def test_as_many_replicas_are_wanted_as_the_streams_fill(loads: list[float], replicas: int, wanted: float) -> None:
    reported = {"load": dict(enumerate(loads))} if loads else None
    context = SimpleNamespace(aggregated_metrics=reported, current_num_replicas=replicas)
    assert replicas_wanted(context) == (wanted, {})


@pytest.fixture
def ray_module() -> ModuleType:
    return importlib.import_module("megatalker.serving.ray")


def deployment(ray_module: ModuleType, **settings: Any) -> Any:
    return ray_module.application(settings)._bound_deployment


@needs_ray
def test_the_deployment_follows_the_settings(ray_module: ModuleType, tmp_path: Path) -> None:
    fixed = deployment(ray_module, device="cpu", server={"drain_timeout_s": 50, "shutdown_timeout_s": 5})
    assert fixed.num_replicas == 1
    assert fixed._deployment_config.graceful_shutdown_timeout_s == 55
    assert fixed.ray_actor_options["num_gpus"] == 0
    (settings,) = fixed.init_args
    assert settings.max_wait_s == 30, "as megatalker serve has it"
    assert settings.server.token_secret is not None, "a token of one replica opens the others"
    file = tmp_path / "other.toml"
    file.write_text('device = "cuda"\n[ray]\nreplicas = 2\nmax_replicas = 4\ngpus = 0.5\n')
    scaled = deployment(ray_module, config=str(file), ray={"cpus": 3})
    scaling = scaled._deployment_config.autoscaling_config
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 4)
    assert scaling.policy.get_policy()(SimpleNamespace(aggregated_metrics={}, current_num_replicas=2)) == (2, {})
    assert (scaled.ray_actor_options["num_gpus"], scaled.ray_actor_options["num_cpus"]) == (0.5, 3)
    assert deployment(ray_module, device="cuda").ray_actor_options["num_gpus"] == 1


@needs_ray
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "device is 'auto', but Ray needs to know"),
        ({"device": "cuda:1"}, "and chooses which"),
        ({"device": "cpu", "server": {"port": 81, "host": "::"}}, "server.host, server.port would have no effect"),
        ({"device": "cpu", "ray": {"replicas": 3, "max_replicas": 2}}, "max_replicas is 2, expected at least"),
        ({"device": "cpu", "replicas": 3}, "replicas"),
    ],
)
def test_settings_that_ray_cannot_follow_are_refused(
    ray_module: ModuleType, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingsError, match=message):
        ray_module.application(settings)


def test_the_page_shows_the_saved_run() -> None:
    saved = json.loads((ROOT / "benchmarks" / "results" / "cpu" / "ray_replicas.json").read_text())
    killed, page = saved["killed"], (ROOT / "docs" / "deployment.md").read_text()
    assert killed["of_the_other_with_other_codes"] == killed["asked_again_with_other_codes"] == 0
    assert f"| {killed['worst_gap_ms_of_the_other']:.0f} ms |" in page
    assert f"| {killed['noticed_after_s']:.1f} s after the kill |" in page
    assert f"| {killed['whole_again_after_s']:.0f} s after the kill; starting both" in page


@needs_ray
def test_the_file_for_serve_deploy_is_what_serve_expects() -> None:
    from ray.serve.schema import ServeDeploySchema

    schema = ServeDeploySchema.model_validate(yaml.safe_load((ROOT / "deploy" / "ray-serve.yaml").read_text()))
    assert schema.applications[0].import_path == "megatalker.serving.ray:application"


# ---- two replicas


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with deployed(checkpoint="demo", backend="reference", max_streams=4) as url:
        yield url


@needs_ray
@pytest.mark.slow
def test_speech_streams_through_the_proxy(url: str) -> None:
    asked = {"input": "Hello there.", "response_format": "pcm", "max_frames": 30, "max_ahead_s": 0.2}
    with httpx.stream("POST", f"{url}/v1/audio/speech", json=asked, timeout=HANG_S) as answer:
        pieces = list(answer.iter_raw())
    assert answer.status_code == 200
    assert len(pieces) > 5, "it is not held back until it is whole"
    assert httpx.get(f"{url}/ready").json()["status"] == "ready"


@needs_ray
@pytest.mark.slow
def test_a_token_of_one_replica_opens_the_others(url: str) -> None:
    token = httpx.post(f"{url}/v1/tokens", timeout=HANG_S).json()
    address = url.replace("http", "ws") + "/v1/speak"
    with ExitStack() as stack:
        for _ in range(4):
            socket = connect(address, subprotocols=token["subprotocols"], open_timeout=HANG_S)
            assert stack.enter_context(socket).subprotocol == token["subprotocols"][0]


@needs_ray
@pytest.mark.slow
def test_streams_on_other_replicas_do_not_notice_that_one_dies(url: str) -> None:
    found = kill_one(url, streams=4, frames=60)
    assert found["streams_of_the_killed_replica"] > 0
    assert found["streams_of_the_other"] > 0
    assert found["of_the_other_with_other_codes"] == 0
    assert found["asked_again_with_other_codes"] == 0


@needs_ray
@pytest.mark.slow
def test_running_speech_is_finished_before_replicas_go(url: str) -> None:
    assert drain(url, streams=4, frames=60)["finished"] == 4
