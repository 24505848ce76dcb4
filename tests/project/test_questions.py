"""Each question of a new user has a page where its answer is looked for, and a heading there that answers it."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PLACES = {
    "How do I install it, and how large is it?": ["install.md#Installation", "install.md#From a clone"],
    "How do I hear something without a download?": ["README.md#Hear something without a download"],
    "How do I speak with an official checkpoint, also without the hub?": [
        "quickstart.md#The official checkpoints",
        "quickstart.md#Without access to the hub",
    ],
    "Does it run on my machine, and how fast?": [
        "hardware.md#Hardware: does it run on my machine?",
        "hardware.md#How fast",
        "hardware.md#On a CPU",
    ],
    "How much memory does a GPU need, how many streams does it carry?": [
        "hardware.md#GPU memory",
        "hardware.md#Streams per card",
    ],
    "How do I clone a voice, from which recording?": ["voices.md#Voices and cloning", "voices.md#Recordings"],
    "How do I add a voice to a server and use it from OpenAI's client?": [
        "server-voices.md#Adding a voice to a server",
        "server-voices.md#Use it from OpenAI's client",
    ],
    "How is speech marked as synthetic?": [
        "synthetic.md#Marked as synthetic",
        "synthetic.md#What it can and cannot do",
    ],
    "How do I use it from Home Assistant?": ["apps.md#Home Assistant", "wyoming.md#Home Assistant (Wyoming)"],
    "How do I use it from OpenAI's Realtime client?": ["realtime.md#OpenAI's Realtime API"],
    "How do I speak into a telephone call, or get another sampling rate?": [
        "telephony.md#Telephone calls and other rates",
        "telephony.md#Twilio and Telnyx",
    ],
    "How do I stream text from a language model into speech?": ["agents.md#Stream text from a language model"],
    "How do I put it into Pipecat or LiveKit, and change the backend?": [
        "agents.md#Pipecat",
        "agents.md#LiveKit",
        "agents.md#Change the backend",
    ],
    "How do I move here?": [
        "moving.md#From OpenAI",
        "moving.md#From ElevenLabs",
        "moving.md#From Kokoro-FastAPI",
        "moving.md#From the official package",
    ],
    "What do I enter in other applications?": ["apps.md#Open WebUI", "apps.md#SillyTavern", "apps.md#Home Assistant"],
    "How do I call it from a browser, what do the bytes mean?": [
        "browser.md#JavaScript in a browser",
        "websocket.md#Packets of audio",
    ],
    "Docker, compose, Kubernetes, a proxy with a prefix and TLS?": [
        "deployment.md#Docker in three lines",
        "deployment.md#Docker compose",
        "deployment.md#Kubernetes",
        "proxies.md#nginx",
        "proxies.md#Traefik, with a prefix and TLS",
    ],
    "Several GPUs, several machines?": [
        "deployment.md#Several GPUs in one machine",
        "deployment.md#Several machines",
    ],
    "How do I protect it, what can a caller not do to others?": [
        "keys.md#Keys: who may speak",
        "keys.md#What a caller cannot do to others",
    ],
    "What do I watch, when do I add a GPU, what means 429?": [
        "operation.md#What to watch",
        "operation.md#When to add a GPU",
        "operation.md#What status 429 means",
    ],
    "Why is the first start slow?": ["operation.md#The first start is slow"],
    "Why does the first chunk take longer than the table says?": [
        "troubleshooting.md#The first chunk takes longer than the table says"
    ],
    "Pauses, spelling, pronunciation, numbers?": [
        "text.md#Pauses",
        "markup.md#Pauses",
        "text.md#Spelling, numbers and pronunciation",
        "text.md#A lexicon: how a word is pronounced",
        "text.md#Numbers, dates and the like in words",
        "text.md#While the text is still being written",
    ],
    "Which word is spoken now?": ["text.md#Which word is spoken now: captions"],
    "How do I read a book?": ["text.md#Reading a book"],
    "What does a seed promise?": ["quickstart.md#What a seed promises"],
    "How do I know that it is right on my checkpoint and card?": [
        "verify.md#Verifying a checkpoint: is it right on my card?"
    ],
    "How do I write a backend, and how is it judged?": [
        "writing-a-backend.md#Writing a backend",
        "conformance.md#How a backend is judged: the conformance suite",
    ],
    "How does the engine schedule, how does the kernel work, where do I begin?": [
        "architecture.md#How the engine schedules",
        "megakernel.md#A frame, step by step",
        "CONTRIBUTING.md#Where to begin",
    ],
}
TROUBLES = ROOT / "docs" / "troubleshooting.md"
OF_OTHERS = {"No matching distribution found for megatalker", "CUDA out of memory"}
"""Errors of pip and torch."""


@pytest.mark.parametrize("place", [place for places in PLACES.values() for place in places])
def test_the_heading_that_answers_is_there_and_says_something(place: str) -> None:
    name, heading = place.split("#", 1)
    page = ROOT / name if name in ("README.md", "CONTRIBUTING.md") else ROOT / "docs" / name
    text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    (answer,) = re.findall(rf"^#+ {re.escape(heading)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    assert len(answer.split()) >= 5, f"{name} has nothing below {heading!r}"


def test_every_page_stands_in_the_navigation() -> None:
    navigation = (ROOT / "website" / "mkdocs.yml").read_text().partition("nav:")[2]
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f" {page.name}\n" not in navigation] == []


def sources() -> str:
    """All sources, with string literals that follow one another joined."""
    folders = ("core", "backends", "kernels")
    text = "\n".join(path.read_text() for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return re.sub(r"\"\s*\n\s*f?\"", "", text)


def test_every_error_of_the_troubleshooting_page_is_one_that_exists() -> None:
    known, told = sources(), []
    tables = TROUBLES.read_text().split("## The first chunk takes")[0]
    for cell in re.findall(r"^\| (?!you read|---)([^|]+) \|", tables, re.MULTILINE):
        told += [error for error in re.findall(r"`([^`]+)`", cell) if error not in OF_OTHERS]
    pieces = [
        (error, piece.strip(" '")) for error in told for piece in re.split(r"\b[A-Z]+\b(?![A-Za-z])|'\w+'", error)
    ]
    assert len(told) > 15
    assert [error for error, piece in pieces if len(piece) > 6 and piece not in known] == []
