"""The page at ``/`` as people meet it: in Chromium, on a real server whose engine runs on fake backends."""

import asyncio
import json
import re
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.async_api import Page, Route, WebSocket, expect

from browser import open_page, violations
from fake_backend import Behaviour, Fakes
from megatalker.checkpoint import Checkpoint
from megatalker.serving.protocol.packets import unpack
from megatalker.serving.server.information import STATIC
from serving import ENDLESS, Served, Server, endless, fakes_with, serving
from voice_recordings import WORDS, speech, wav
from waiting import HANG_S, eventually

EAVESDROP = """
const connect = AudioNode.prototype.connect;
AudioNode.prototype.connect = function (target, ...rest) {
  if (target instanceof AudioDestinationNode) {
    window.ear ??= new AnalyserNode(target.context);
    window.echo ??= lastingEcho(target.context);
    connect.call(this, ear);
    connect.call(this, echo);
  }
  return connect.call(this, target, ...rest);
};
function lastingEcho(context) {
  const echo = new DelayNode(context, { delayTime: 1, maxDelayTime: 1 });
  echo.connect(echo);
  echo.connect((echo.ear = new AnalyserNode(context)));
  return echo;
}
window.loudness = (ear) => {
  const heard = new Float32Array(ear?.fftSize ?? 0);
  ear?.getFloatTimeDomainData(heard);
  return ear?.context.state === "running" ? Math.max(...heard) : 0;
};
"""
"""Records what the page sends to the loudspeaker, and repeats it each second, so that a late look finds it."""

STOP_AFTER_3_S = """
const button = document.getElementById("record");
new MutationObserver(() => {
  if (button.textContent === "Stop recording (3 s)") button.click();
}).observe(button, { childList: true });
"""


class Visit:
    """A page of a server, everything that it complained of, and all that it was sent."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.asked: list[str] = []
        """URLs."""
        self.sockets: list[WebSocket] = []
        self.sent: list[str | bytes] = []
        self.events: list[str] = []
        self.samples: list[int] = []
        """Number of samples of each chunk."""
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda message: self.complaints.append(message.text) if "Policy" in message.text else None)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("websocket", self._listen)

    def _listen(self, socket: WebSocket) -> None:
        self.asked.append(socket.url)
        self.sockets.append(socket)
        socket.on("framesent", lambda message: self.sent.append(message))
        socket.on("framereceived", self._receive)

    def _receive(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self.events.append(message)
        else:
            self.samples.append(len(unpack(message).pcm))

    async def to(self, served: Served) -> None:
        await self.page.add_init_script(EAVESDROP)
        await self.page.goto(served.url)

    async def ready(self) -> None:
        await expect(self.page.locator("#about")).to_contain_text("ready")

    async def press(self, button: str) -> None:
        await self.page.get_by_role("button", name=button, exact=True).click()

    async def status(self, words: str) -> None:
        await expect(self.page.get_by_role("status")).to_contain_text(words)

    async def figure(self, name: str, panel: int = 0) -> int:
        return int(await self.value(name, panel))

    async def value(self, name: str, panel: int = 0) -> str:
        return await self.page.locator(f".panel .{name}").nth(panel).get_attribute("value") or "0"

    async def loud(self) -> bool:
        return bool(await self.page.evaluate("loudness(window.ear)") > 0.1)

    async def echoes(self) -> bool:
        return bool(await self.page.evaluate("loudness(window.echo?.ear)") > 0.1)

    async def silent(self) -> bool:
        return bool(await self.page.evaluate("loudness(window.ear)") == 0)

    async def listens(self) -> bool:
        return bool(await self.page.evaluate("Boolean(window.ear)"))

    async def hold(self) -> None:
        """Let no time pass for the loudspeaker, whatever comes."""
        await self.page.evaluate("ear.context.suspend()")

    async def let_go(self) -> None:
        await self.page.evaluate("ear.context.resume()")

    async def far_ahead(self) -> bool:
        return await self.figure("arrived") - await self.figure("played") > 20 * 24_000

    async def hung_up(self) -> bool:
        return all(socket.is_closed() for socket in self.sockets)

    async def cancelled_twice(self) -> bool:
        return bool([event for event in self.events if '"cancelled"' in event][1:])

    async def clock(self) -> float:
        return float(await self.page.evaluate("ear.context.currentTime"))

    async def arrived(self, frames: int) -> bool:
        return await self.figure("arrived") == sum(self.samples) == frames * 1920

    async def dry(self) -> bool:
        return await self.figure("played") == sum(self.samples) > 0 and await self.silent()


async def until(look: Callable[[], Awaitable[bool]], what: str) -> None:
    deadline = time.monotonic() + HANG_S
    while not await look():
        assert time.monotonic() < deadline, f"never happened: {what}"
        await asyncio.sleep(0.01)


def test_the_page_is_open_and_brings_no_code_inside(serve: Server) -> None:
    served = serve(server={"api_key": "secret"})
    page = httpx.get(served.url)
    policy = page.headers["content-security-policy"]
    assert "default-src 'none'; script-src 'self'; style-src 'self'" in policy
    assert "unsafe" not in policy
    assert not re.findall(r'<style|<script(?![^>]*src=)|\sstyle=|\son\w+=|(?:src|href)="[^"]*:', page.text)
    wanted = set(re.findall(r'(?:src|href)="static/([^"]+)"', page.text))
    for module in STATIC.glob("*.js"):
        wanted |= {module.name} | set(re.findall(r'"(?:\./)?([\w-]+\.js)"', module.read_text()))
    assert wanted == {file.name for file in STATIC.iterdir()} - {"index.html"}, "each is used"
    for name in wanted:
        answer = httpx.get(f"{served.url}/static/{name}").raise_for_status()
        assert answer.headers["cache-control"] == "no-cache", "files of two versions would not fit together"


@pytest.mark.slow
@pytest.mark.asyncio
async def test_all_that_is_sent_is_heard_and_a_pause_of_the_server_is_a_gap(tiny_1b7: Checkpoint) -> None:
    held, pauses, go_on = (threading.Event() for _ in range(3))

    def pause(call: int) -> None:
        if call == 0:
            held.wait(HANG_S)
        if call == 5:
            pauses.set()
            go_on.wait(HANG_S)

    fakes = fakes_with(frames=12, on_decode=pause)
    async with open_page() as page:
        with serving(tiny_1b7, fakes) as served:
            visit = Visit(page)
            await visit.to(served)
            await visit.ready()
            chosen = {
                "text": "Good evening.",
                "language": "english",
                "seed": 7,
                "voice": "serena",
                "instruct": "calmly",
            }
            await page.get_by_label("Text").fill(chosen["text"])
            await page.get_by_label("How to say it").fill(chosen["instruct"])
            await page.get_by_label("Language").select_option("English")
            await page.get_by_label("Seed").fill("7")
            await page.get_by_role("combobox", name="Voice").first.select_option("serena")
            await visit.press("Speak")
            await until(visit.listens, "the sound is about to begin")
            await visit.hold()
            held.set()
            await asyncio.to_thread(pauses.wait, HANG_S)
            frames = sum(map(sum, fakes.loaded["noise"].calls))
            await until(lambda: visit.arrived(frames), "all so far is there")
            await visit.let_go()
            await until(visit.dry, "all so far is played")
            await visit.hold()
            go_on.set()
            await until(lambda: visit.arrived(12), "the rest is there")
            await visit.let_go()
            await visit.status("All is said.")
            assert json.loads(visit.sent[0]) == {"type": "open", "id": "1"} | chosen
            assert json.loads(visit.events[0])["instruct"] == "followed"
            assert await visit.figure("played") == await visit.figure("arrived") == sum(visit.samples) == 12 * 1920
            assert await visit.figure("gaps") == 1
            await expect(page.locator(".made-by").first).to_have_text("backend fake · codec noise · seed 7")
            first, factor = [float(await visit.value(name)) for name in ("first", "rtf")]
            assert 0 < first <= factor * 12 * 0.08, "the first of all that arrived"
            await page.evaluate("echo.disconnect(), (echo = null)")
            await visit.press("Play again")
            await until(visit.echoes, "the first sound, again")
            await visit.status("All is said.")
            assert (await visit.figure("played"), await visit.figure("gaps")) == (12 * 1920, 0)
            assert len(visit.sent) == 1, "nothing was asked for again"
            assert not visit.complaints


@pytest.mark.slow
@pytest.mark.asyncio
async def test_stop_ends_sound_and_speech_and_a_server_that_goes_is_told(serve: Server) -> None:
    fakes = endless()
    served = serve(fakes, **ENDLESS)
    async with open_page() as page:
        visit = Visit(page)
        await visit.to(served)
        await visit.ready()

        for cancelled, stop in enumerate((page.get_by_role("button", name="Stop").click, escape(page)), start=1):
            await page.get_by_label("Text").press("Control+Enter")
            await until(visit.loud, "it speaks")
            began = await visit.clock()
            await until(visit.far_ahead, "much is there to be played")
            await stop()
            await until(visit.silent, "the sound ends")
            assert await visit.clock() - began < await visit.figure("arrived") / 24_000, "it is cut short"
            await visit.status("Stopped.")
            await asyncio.to_thread(eventually, lambda: served.rows_free(fakes), "the stream has ended")
            assert served.engine.metrics().cancelled == cancelled
        await until(visit.cancelled_twice, "the server ended both")
        await page.evaluate("text.value = '\\ud800'")  # half a character, in which there is nothing to say
        await visit.press("Speak")
        await visit.status("All is said.")
        await page.get_by_label("Text").fill("Good evening.")
        await visit.press("Speak")
        await until(visit.loud, "it speaks")
        await asyncio.to_thread(served.stop)
        await until(visit.hung_up, "the page knows")
        await visit.press("Speak")
        await visit.status("does not answer. Is it running?")
        assert not visit.complaints


def escape(page: Page) -> Callable[[], Awaitable[None]]:
    return lambda: page.keyboard.press("Escape")


@pytest.mark.slow
@pytest.mark.usefixtures("quick_clones")
@pytest.mark.asyncio
async def test_a_recording_becomes_a_voice_that_speaks(tiny_base: Checkpoint, tmp_path: Path) -> None:
    reference = tmp_path / "reference.wav"
    reference.write_bytes(wav(speech()))
    voices = tmp_path / "voices"
    voices.mkdir()
    with serving(tiny_base, fakes_with(frames=3), server={"voices_dir": voices}) as served:
        async with open_page(microphone=reference) as page:
            visit = Visit(page)
            await visit.to(served)
            await visit.ready()
            await page.get_by_text("Add a voice").click()
            await page.get_by_label("Name").fill("anna")
            await page.get_by_label("Recording").set_input_files(reference)
            await page.get_by_label("Every word").fill("Yes.")
            await visit.press("Add the voice")
            await visit.status("the transcript has 3 letters")
            await page.get_by_label("Every word").fill(WORDS)
            await visit.press("Add the voice")
            await visit.status("anna can speak now")
            await page.get_by_label("Name").fill("bert")
            await page.evaluate(STOP_AFTER_3_S)
            await visit.press("Record")
            await expect(page.locator("#preview")).to_be_visible()
            await visit.press("Add the voice")
            await visit.status("bert can speak now")
            voice = page.get_by_role("combobox", name="Voice").first
            await expect(voice).to_have_value("bert")
            await visit.press("Speak")
            await visit.status("All is said.")
            assert await visit.figure("played") == sum(visit.samples) > 0
            httpx.delete(served.url + "/v1/voices/bert").raise_for_status()
            await visit.press("Speak")
            await visit.status("unknown voice 'bert'")
            await expect(page.get_by_role("status")).to_have_attribute("data-state", "failed")
            assert not visit.complaints


@pytest.mark.slow
@pytest.mark.asyncio
async def test_two_servers_with_keys_speak_side_by_side(serve: Server) -> None:
    fakes = [Fakes(talkers={name: Behaviour(frames=frames)}) for name, frames in (("near", 3), ("far", 4))]
    near = serve(fakes[0], server={"api_key": "mt-near"})
    far = serve(fakes[1], server={"api_key": "mt-far", "allowed_origins": [near.url]})
    async with open_page() as page:
        visit = Visit(page)
        await visit.to(near)
        await visit.status(f"{near.url[7:]} asks for an API key.")
        await enter(page, "mt-wrong", panel=0)
        await visit.status(f"{near.url[7:]} refuses this API key.")
        await enter(page, "mt-near", panel=0)
        await visit.ready()
        await page.get_by_label("Compare").check()
        await expect(page.get_by_label("API key").nth(1)).to_be_hidden()
        await page.get_by_role("textbox", name="Server").fill(far.url)
        await page.get_by_role("textbox", name="Server").press("Tab")
        await visit.status(f"{far.url[7:]} asks for an API key.")
        await enter(page, "mt-far", panel=1)
        await expect(page.get_by_role("combobox", name="Voice").nth(1)).not_to_be_empty()
        await visit.press("Speak")
        await visit.status("All is said.")
        assert [await visit.figure("played", panel) for panel in (0, 1)] == [3 * 1920, 4 * 1920]
        made_by = await page.locator(".made-by").all_text_contents()
        assert [words.split(" · ")[0] for words in made_by] == ["backend near", "backend far"]
        assert made_by[0].split()[-1] == made_by[1].split()[-1], "the same seed"
        assert not [url for url in visit.asked if "mt-" in url]
        assert not visit.complaints


async def enter(page: Page, key: str, panel: int) -> None:
    field = page.get_by_label("API key").nth(panel)
    await field.fill(key)
    await field.press("Tab")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_page_is_for_everybody(serve: Server) -> None:
    warm = threading.Event()
    hosts = {"allowed_hosts": ["127.0.0.1", "insecure.test"]}
    served = serve(fakes_with(frames=2, on_warmup=lambda: warm.wait(HANG_S)), ready=False, server=hosts)
    await asyncio.to_thread(eventually, lambda: served.server.started, "the server answers")
    async with open_page("--host-resolver-rules=MAP insecure.test 127.0.0.1") as page:
        visit = Visit(page)
        await visit.to(served)
        await expect(page.locator("#about")).to_contain_text("warming up")
        warm.set()
        await visit.ready()
        await visit.press("Speak")
        await visit.status("All is said.")
        await page.get_by_label("Compare").check()
        await page.get_by_role("textbox", name="Server").fill("http://127.0.0.1:1")
        await page.get_by_role("textbox", name="Server").press("Tab")
        await visit.status("allowed_origins")
        await page.get_by_text("Add a voice").click()
        looks: list[dict[str, Any]] = [{"color_scheme": "light"}, {"color_scheme": "dark", "reduced_motion": "reduce"}]
        for look in looks:
            await page.emulate_media(**look)
            for width in (1280, 360):
                await page.set_viewport_size({"width": width, "height": 800})
                assert not await violations(page), (look, width)
                assert await page.evaluate("document.documentElement.scrollWidth") <= width, "nothing sticks out"
        assert await page.locator("[aria-live]").count() == 1
        looked = asyncio.Event()

        async def answer_later(route: Route) -> None:
            await looked.wait()
            await route.continue_()

        await page.route("**/v1/models", answer_later)
        await page.goto(served.url.replace("127.0.0.1", "insecure.test"))
        await visit.press("Speak")
        await visit.status("only from https and from localhost")
        looked.set()
        await visit.ready()
        await visit.status("only from https and from localhost")
