"""Films a conversation with the agent's page: spoken, with an interruption. Picture and sound of the real agent.

The user's words are speech of another speaker of the checkpoint; speech to text and language model are a script.

    python record.py agent.mp4      # needs Chromium, and megatalker[dev]
"""

import asyncio
import base64
import io
import json
import os
import shutil
import socket
import sys
from collections.abc import AsyncIterator
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import soundfile
import uvicorn
from av.video.frame import PictureType
from fastapi import FastAPI, Request
from fastapi.responses import StreamingResponse
from playwright.async_api import Page, async_playwright

from megatalker import Engine

USER = "mina"
CHECKPOINT = os.environ.get("MEGATALKER_CHECKPOINT", "demo")
ASK, STOP, THANK = "Tell me something about the sea.", "How deep is it?", "Thank you and goodbye."
ANSWERS = {
    ASK: "The sea is wide and deep. It covers most of the earth, and holds nearly all of its water. Many animals live "
    "in it, from the smallest drifting things to the largest whales. Sailors crossed it with nothing but the stars.",
    STOP: "Almost four kilometers, on average. At its deepest, it is more than eleven.",
    THANK: "Goodbye. It was nice to talk with you.",
}
SIZE = {"width": 900, "height": 640}
FPS, RATE = 25, 48_000

IN_THE_PAGE = """
const context = new AudioContext({ sampleRate: 48000 });
const [microphone, everything] = [context.createMediaStreamDestination(), context.createMediaStreamDestination()];
const silence = new ConstantSourceNode(context, { offset: 0 }); // a recorder waits for something to record
silence.connect(microphone);
silence.connect(everything);
silence.start();
navigator.mediaDevices.getUserMedia = async () => microphone.stream.clone();
globalThis.userSays = async (wav) => {
  const bytes = Uint8Array.from(atob(wav), (letter) => letter.charCodeAt(0));
  const source = new AudioBufferSourceNode(context, { buffer: await context.decodeAudioData(bytes.buffer) });
  source.connect(microphone);
  source.connect(everything);
  source.start();
  await new Promise((done) => { source.onended = done; });
};
globalThis.record = () => {
  const recorder = new MediaRecorder(everything.stream);
  const pieces = [];
  recorder.ondataavailable = (event) => pieces.push(event.data);
  document.getElementById("speaker").addEventListener("play", (event) =>
    context.createMediaStreamSource(event.target.srcObject).connect(everything));
  globalThis.recorded = () => new Promise((done) => {
    recorder.onstop = async () => {
      const reader = new FileReader();
      reader.onload = () => done(reader.result.split(",")[1]);
      reader.readAsDataURL(new Blob(pieces));
    };
    recorder.stop();
  });
  return new Promise((done) => { recorder.onstart = () => done(Date.now() / 1000); recorder.start(); });
};
"""


class DialogueScript:
    """Speech to text and language model that know the conversation."""

    def __init__(self) -> None:
        self.said = ""
        """Words that the user is saying; they are transcribed once."""
        self.app = FastAPI()
        self.app.post("/v1/audio/transcriptions")(self.hear)
        self.app.post("/v1/chat/completions")(self.answer)

    async def hear(self) -> dict[str, str]:
        said, self.said = self.said, ""
        return {"text": said}

    async def answer(self, request: Request) -> StreamingResponse:
        messages = (await request.json())["messages"]
        asked = next(said for message in reversed(messages) if (said := message["content"]) in ANSWERS)
        return StreamingResponse(self.tokens(ANSWERS[asked]), media_type="text/event-stream")

    async def tokens(self, answer: str) -> AsyncIterator[str]:
        chunk = {"id": "1", "object": "chat.completion.chunk", "created": 0, "model": "script"}
        for word in answer.split(" "):
            choice = {"index": 0, "delta": {"role": "assistant", "content": f"{word} "}, "finish_reason": None}
            yield f"data: {json.dumps({**chunk, 'choices': [choice]})}\n\n"
            await asyncio.sleep(0.02)
        yield "data: [DONE]\n\n"


async def converse(page: Page, script: DialogueScript, recordings: dict[str, str]) -> None:
    """The user's part."""

    async def state(name: str) -> None:
        await page.wait_for_selector(f"#state[data-state={name}]")

    async def say(words: str) -> None:
        script.said = words
        await page.evaluate("wav => userSays(wav)", recordings[words])

    await asyncio.sleep(2.0)
    await page.click("#connect")
    await state("listening")
    await asyncio.sleep(1.0)
    await say(ASK)
    await state("speaking")
    await asyncio.sleep(8.0)
    await say(STOP)
    await page.wait_for_selector(".cut")
    await state("speaking")
    await state("listening")
    await asyncio.sleep(0.8)
    await say(THANK)
    await state("speaking")
    await state("listening")
    await asyncio.sleep(1.0)
    await page.click("#connect")
    await asyncio.sleep(1.5)


async def film(
    url: str, script: DialogueScript, recordings: dict[str, str]
) -> tuple[list[tuple[float, bytes]], float, bytes]:
    """Pictures (JPEG) with their times, when the sound begins, and the sound (WebM)."""
    pictures: list[tuple[float, bytes]] = []
    async with async_playwright() as playwright:
        arguments = ["--no-sandbox", "--autoplay-policy=no-user-gesture-required"]
        chromium = shutil.which("chromium") or shutil.which("google-chrome")
        browser = await playwright.chromium.launch(executable_path=chromium, args=arguments)
        page = await browser.new_page(viewport=SIZE, device_scale_factor=1)
        page.set_default_timeout(300_000)
        await page.add_init_script(IN_THE_PAGE)
        await page.goto(url)
        await page.wait_for_selector("#connect:enabled")
        session = await page.context.new_cdp_session(page)

        async def take(event: dict[str, Any]) -> None:
            pictures.append((event["metadata"]["timestamp"], base64.b64decode(event["data"])))
            await session.send("Page.screencastFrameAck", {"sessionId": event["sessionId"]})

        session.on("Page.screencastFrame", take)
        began = await page.evaluate("record()")
        await session.send("Page.startScreencast", {"format": "jpeg", "quality": 92})
        await converse(page, script, recordings)
        sound = base64.b64decode(await page.evaluate("recorded()"))
        await browser.close()
    return pictures, began, sound


def write(path: Path, pictures: list[tuple[float, bytes]], began: float, sound: bytes) -> None:
    """Join picture and sound, both since the moment at which the sound began."""
    with av.open(io.BytesIO(sound)) as heard, av.open(path, "w", options={"movflags": "faststart"}) as film:
        video = film.add_stream("libx264", FPS, options={"crf": "26", "preset": "slow"})
        size = video.width, video.height = SIZE["width"], SIZE["height"]
        video.pix_fmt = "yuv420p"
        audio = film.add_stream("aac", RATE, layout="mono", bit_rate=80_000)
        resampler = av.AudioResampler("fltp", "mono", RATE, frame_size=audio.codec_context.frame_size or 1024)
        samples = 0
        for given in heard.decode(audio=0):
            for frame in resampler.resample(given):
                frame.pts, frame.time_base = samples, Fraction(1, RATE)
                samples += frame.samples
                film.mux(audio.encode(frame))
        film.mux(audio.encode(None))
        shown = -1
        for number in range(int(samples / RATE * FPS)):
            while shown + 1 < len(pictures) and (shown < 0 or pictures[shown + 1][0] - began <= number / FPS):
                shown += 1
                picture = next(av.open(io.BytesIO(pictures[shown][1])).decode(video=0))
            frame = picture.reformat(*size, "yuv420p", src_color_range="JPEG", dst_color_range="MPEG")
            frame.pts, frame.time_base, frame.pict_type = number, Fraction(1, FPS), PictureType.NONE
            film.mux(video.encode(frame))
        film.mux(video.encode(None))


def spoken(words: str, engine: Engine) -> str:
    """The user's words as a WAV file in base64."""
    file = io.BytesIO()
    pcm = engine.speak(words, voice=USER, seed=1).read_all()
    soundfile.write(file, np.concatenate([pcm, np.zeros(2400, np.float32)]), 24_000, format="WAV")
    return base64.b64encode(file.getvalue()).decode()


async def main(path: Path) -> None:
    """Start everything, film, write."""
    with Engine.open(checkpoint=CHECKPOINT) as engine:
        recordings = {words: spoken(words, engine) for words in ANSWERS}
    script = DialogueScript()
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    own, agents = (listener.getsockname()[1] for listener in listeners)
    listeners[1].close()
    server = uvicorn.Server(uvicorn.Config(script.app, log_level="warning"))
    serving = asyncio.create_task(server.serve([listeners[0]]))
    endpoint = {"URL": f"http://127.0.0.1:{own}/v1", "MODEL": "script"}
    told = {f"MEGATALKER_AGENT__{who}__{name}": value for who in ("STT", "LLM") for name, value in endpoint.items()}
    command = ["-m", "megatalker_pipecat.agent", "--host", "127.0.0.1", "--port", str(agents)]
    agent = await asyncio.create_subprocess_exec(sys.executable, *command, env=os.environ | told)
    try:
        while True:
            try:
                (await asyncio.open_connection("127.0.0.1", agents))[1].close()
                break
            except ConnectionRefusedError:
                await asyncio.sleep(0.2)
        write(path, *await film(f"http://127.0.0.1:{agents}/", script, recordings))
    finally:
        agent.terminate()
        await agent.wait()
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1])))
