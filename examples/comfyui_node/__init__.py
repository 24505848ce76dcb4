"""A node of ComfyUI that speaks by a megatalker server.

Copy this folder into ComfyUI's ``custom_nodes``. It needs nothing that ComfyUI does not have. A server with keys wants
one in the environment's ``MEGATALKER_API_KEY``.
"""

import json
import os
import urllib.error
import urllib.request
from typing import Any

import torch

RATE = 24_000
TIMEOUT_S = 600


class MegatalkerSpeech:
    """Speak a text. The same text, voice and seed are the same speech."""

    CATEGORY = "audio"
    FUNCTION = "speak"
    RETURN_TYPES = ("AUDIO",)

    @classmethod
    def INPUT_TYPES(cls) -> dict[str, Any]:  # noqa: N802 - ComfyUI's name
        """Return the inputs, in ComfyUI's form."""
        seed = {"default": 0, "min": 0, "max": 2**53 - 1, "control_after_generate": True}
        return {
            "required": {
                "text": ("STRING", {"multiline": True}),
                "voice": ("STRING", {"default": "", "tooltip": "one of the server's /v1/voices; empty: its default"}),
                "seed": ("INT", seed),
                "server": ("STRING", {"default": "http://localhost:8000"}),
            },
        }

    def speak(self, text: str, voice: str, seed: int, server: str) -> tuple[dict[str, Any]]:
        """Return ComfyUI's audio: ``waveform`` float32 ``[1, 1, samples]`` within [-1, 1], and ``sample_rate``.

        Raises:
            RuntimeError: no server answers there, or it refuses the request; the message says why.
        """
        if not server.startswith(("http://", "https://")):
            raise RuntimeError(f"server is {server!r}, expected an address such as http://localhost:8000")
        body = {"input": text, "seed": seed, "response_format": "pcm", **({"voice": voice} if voice else {})}
        headers = {"Content-Type": "application/json"}
        if key := os.environ.get("MEGATALKER_API_KEY"):
            headers["Authorization"] = f"Bearer {key}"
        request = urllib.request.Request(server.rstrip("/") + "/v1/audio/speech", json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                samples = answer.read()
        except urllib.error.HTTPError as error:
            raise RuntimeError(f"the server at {server} refuses: {_message(error)}") from error
        except OSError as error:
            raise RuntimeError(f"no megatalker server answers at {server} ({error}); start megatalker serve") from error
        waveform = torch.frombuffer(bytearray(samples), dtype=torch.int16).float() / 32768
        return ({"waveform": waveform.reshape(1, 1, -1), "sample_rate": RATE},)


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, LookupError, TypeError):
        return str(error)


NODE_CLASS_MAPPINGS = {"MegatalkerSpeech": MegatalkerSpeech}
NODE_DISPLAY_NAME_MAPPINGS = {"MegatalkerSpeech": "Speech (megatalker)"}
