"""Applications of docs/apps.md: what each sends, as its sources have it, and what it makes of the answer."""

import importlib.util
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import numpy as np
import pytest
import soundfile

from megatalker.checkpoint import Checkpoint
from megatalker.serving.audio import to_pcm16
from serving import TEXT, Served, serving

EXAMPLES = Path(__file__).parents[2] / "examples"
PAGE = (Path(__file__).parents[2] / "docs" / "apps.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def served(tiny_custom_voice: Checkpoint) -> Iterator[Served]:
    with serving(tiny_custom_voice) as running:
        yield running


def field(application: str, name: str) -> str:
    """The value that the page says to enter."""
    section = PAGE.split(f"\n## {application}\n")[1].split("\n## ")[0]
    row = re.search(rf"^\| {re.escape(name)} \| `([^`]*)`", section, re.M)
    assert row is not None, f"{application} has the field {name}"
    return row[1]


def here(served: Served, address: str) -> str:
    assert address.startswith(("http://HOST:8000/", "http://localhost:8000/"))
    return served.url + "/" + address.split("/", 3)[3]


def assert_mp3(answer: httpx.Response) -> None:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "audio/mpeg"
    samples, rate = soundfile.read(io.BytesIO(answer.content))
    assert rate == 24_000
    assert len(samples) > 1920


def test_open_webui(served: Served) -> None:
    """Its ``routers/audio.py``: no format is asked for, what comes is kept as MP3, and voices and models are listed."""
    base = here(served, field("Open WebUI", "API Base URL"))
    headers = {"Authorization": "Bearer sk-none", "X-OpenWebUI-User-Name": "Ann", "X-OpenWebUI-User-Role": "admin"}
    asked = {"input": TEXT, "voice": field("Open WebUI", "TTS Voice"), "model": field("Open WebUI", "TTS Model")}
    assert_mp3(httpx.post(base + "/audio/speech", json=asked | {"voice": "alloy"}, headers=headers))
    voices = httpx.get(base + "/audio/voices", headers=headers).json()["voices"]
    assert voices
    assert_mp3(httpx.post(base + "/audio/speech", json=asked | {"voice": _name(voices[0])}, headers=headers))
    assert httpx.get(base + "/audio/models", headers=headers).json()["models"]


def _name(voice: Any) -> str:
    return str(voice["id"] if isinstance(voice, dict) else voice)


@pytest.mark.parametrize("speed", [1, 0.25, 4])
def test_silly_tavern(served: Served, speed: float) -> None:
    """Its ``endpoints/openai.js``: the header of a key is there without a key, too; fetch leaves out the space."""
    endpoint = here(served, field("SillyTavern", "Provider Endpoint"))
    asked = {"input": TEXT, "response_format": "mp3", "voice": "alloy", "speed": speed}
    asked["model"] = field("SillyTavern", "Model")
    assert_mp3(httpx.post(endpoint, json=asked, headers={"Authorization": "Bearer"}))


def test_n8n(served: Served) -> None:
    """The workflow of the example, read as n8n reads it: the expression's names are JavaScript's."""
    workflow = json.loads((EXAMPLES / "n8n" / "speech.json").read_text(encoding="utf-8"))
    nodes = {node["name"]: node for node in workflow["nodes"]}
    at, path = "Start", []
    while at in workflow["connections"]:
        at = workflow["connections"][at]["main"][0][0]["node"]
        path.append(at)
    assert path == ["Text", "Speech"]
    (said,) = nodes["Text"]["parameters"]["assignments"]["assignments"]
    request = nodes["Speech"]["parameters"]
    assert nodes["Speech"]["type"] == "n8n-nodes-base.httpRequest"
    body = request["jsonBody"].removeprefix("={{").removesuffix("}}").replace("$json.text", json.dumps(said["value"]))
    answer = httpx.request(request["method"], here(served, request["url"]), json=json.loads(body))
    assert_mp3(answer)
    assert int(answer.headers["content-length"]) == len(answer.content)


# ---- ComfyUI


@pytest.fixture(scope="module")
def comfyui_node() -> ModuleType:
    spec = importlib.util.spec_from_file_location("comfyui_node", EXAMPLES / "comfyui_node" / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_node(module: ModuleType, **changes: Any) -> dict[str, Any]:
    """Run it like ComfyUI: the class by its mapping, the inputs' defaults, and the method by its name."""
    node = module.NODE_CLASS_MAPPINGS["MegatalkerSpeech"]
    defaults = {name: options.get("default", "") for name, (_, options) in node.INPUT_TYPES()["required"].items()}
    (audio,) = getattr(node(), node.FUNCTION)(**(defaults | changes))
    assert len(node.RETURN_TYPES) == 1
    return dict(audio)


def test_comfyui(served: Served, comfyui_node: ModuleType) -> None:
    audio = run_node(comfyui_node, text=TEXT, server=served.url + "/", seed=5)
    waveform = audio["waveform"]
    assert (waveform.dim(), *waveform.shape[:2], audio["sample_rate"]) == (3, 1, 1, 24_000)
    expected = to_pcm16(served.engine.speak(TEXT, seed=5).read_all())
    assert np.array_equal((waveform.flatten() * 32768).numpy().astype(np.int16), np.frombuffer(expected, np.int16))


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"voice": "nobody"}, "refuses: .*nobody"),
        ({"text": ""}, "refuses: .*text is empty"),
        ({"server": "localhost:8000"}, "expected an address such as http"),
        ({"server": "http://127.0.0.1:9"}, "no megatalker server answers"),
    ],
)
def test_comfyui_says_what_is_wrong(
    served: Served, comfyui_node: ModuleType, changes: dict[str, str], why: str
) -> None:
    with pytest.raises(RuntimeError, match=why):
        run_node(comfyui_node, **({"text": TEXT, "server": served.url} | changes))


def test_comfyui_sends_the_key(
    tiny_custom_voice: Checkpoint, comfyui_node: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tiny_custom_voice, server={"api_key": "mt-secret"}) as served:
        with pytest.raises(RuntimeError, match="refuses: the API key is missing or wrong"):
            run_node(comfyui_node, text=TEXT, server=served.url)
        monkeypatch.setenv("MEGATALKER_API_KEY", "mt-secret")
        assert run_node(comfyui_node, text=TEXT, server=served.url)["waveform"].numel() > 0
