"""The agent's page in a browser: whole conversations, and everything that may go wrong in them."""

import asyncio
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import soundfile
from playwright.async_api import Browser, Page, expect

from agent_desk import AgentDesk, open_for_calls
from agent_process import QUICK, agent_at_work
from browser import new_page, open_browser, violations
from fake_backend import Fakes
from megatalker import Checkpoint, Engine, Settings
from megatalker.errors import BackendUnavailableError
from megatalker_benchmarks.mock_openai import MockOpenAI
from megatalker_benchmarks.vowels import RATE, utterance
from megatalker_pipecat import EnginePool, MegatalkerTTSService
from megatalker_pipecat.agent import services
from pipecat_stage import closing
from session_stage import fakes, pool_of
from waiting import HANG_S

pytestmark = [pytest.mark.slow, pytest.mark.asyncio(loop_scope="module")]

LOW, HIGH = 110.0, 190.0
ASKED, STOPPED = "Tell me about the sea.", "Wait, stop."
STORY = "The sea is wide and deep. It covers most of the earth. Many animals live in it. Sailors crossed it long ago."
WORDS = "Good morning to you."
LONG_FRAMES = 400  # of each sentence: longer than any test
SOON_MS = 5000
"""Milliseconds within which a caller is told of a lost agent."""

expect.set_options(timeout=1000 * HANG_S)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Browser]:
    """A browser whose microphone repeats a question and, after a while, an interruption of the answer."""
    file = tmp_path_factory.mktemp("microphone") / "user.wav"
    rest = np.zeros(6 * RATE, np.int16)
    question, interruption = utterance("aeiaeiaei", LOW), utterance("aeiaeia", HIGH)
    soundfile.write(file, np.concatenate([rest, question, rest, interruption, rest]), RATE)
    async with open_browser(microphone=file) as browser:
        yield browser


@pytest.fixture(autouse=True)
def closed_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OpenAILLMService", "OpenAISTTService"):
        monkeypatch.setattr(services, name, closing(getattr(services, name)))


@pytest.fixture
def speak_with(tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the agent's engines use these fakes."""
    return lambda plug_in: monkeypatch.setattr(MegatalkerTTSService, "engines", pool_of(plug_in, tiny_custom_voice))


@asynccontextmanager
async def page_of(browser: Browser, address: str, **look: Any) -> AsyncIterator[Page]:
    page = await new_page(browser, **look)
    errors: list[object] = []
    page.on("pageerror", lambda error: errors.append(error))
    try:
        await page.goto(f"http://{address}/client/")
        yield page
        assert not errors
    finally:
        await page.close()


async def be_in_state(page: Page, name: str) -> None:
    await expect(page.locator("#state")).to_have_attribute("data-state", name)


async def call(page: Page) -> None:
    await page.click("#connect")
    await be_in_state(page, "listening")


async def say(page: Page, words: str) -> None:
    await page.fill("#words", words)
    await page.keyboard.press("Enter")


async def test_the_page_while_the_engine_loads(
    browser: Browser, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    loads = threading.Event()
    plug_in = fakes(on_load=lambda: bool(loads.wait(HANG_S)))
    monkeypatch.setattr(MegatalkerTTSService, "engines", pool_of(plug_in, tiny_custom_voice))
    async with (
        open_for_calls(AgentDesk(None), loading=True) as address,
        page_of(browser, address, width=360, height=640, dark=True) as page,
    ):
        await expect(page.locator("#how")).to_contain_text("loading talker backend fake, ")
        assert await violations(page) == []
        assert await page.is_disabled("#connect")
        refused = await page.request.post(f"http://{address}/start", data={})
        assert (refused.status, await refused.text()) == (503, "the engine is being loaded")
        loads.set()
        await expect(page.locator("#connect")).to_be_enabled()
        await expect(page.locator("#announcer")).to_have_text("Ready to be called.")
        await expect(page.locator("#how")).to_contain_text("Start the call and type")
        assert await violations(page) == []
        wide = await page.evaluate("document.documentElement.scrollWidth")
        assert wide <= 360, "it fits a phone"


async def test_an_engine_that_cannot_be_loaded_stops_the_server(
    tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    def on_load() -> None:
        raise RuntimeError("no such device")

    monkeypatch.setattr(MegatalkerTTSService, "engines", pool_of(fakes(on_load=on_load), tiny_custom_voice))
    signals: list[int] = []
    monkeypatch.setattr("signal.raise_signal", signals.append)

    async def serve() -> None:
        async with open_for_calls(AgentDesk(None), loading=True):
            while not signals:
                await asyncio.sleep(0.01)

    with pytest.raises(BackendUnavailableError, match="no such device"):
        await serve()
    assert signals == [signal.SIGINT]


@pytest.mark.parametrize("backend", ["reference", "compiled"])
async def test_a_typed_conversation(
    backend: str, browser: Browser, tiny_custom_voice: Checkpoint, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = EnginePool(lambda settings: Engine.open(settings, checkpoint=tiny_custom_voice))
    monkeypatch.setattr(MegatalkerTTSService, "engines", pool)
    own = {"compiled": {"compile": "off"}}
    engine = Settings(backend=backend, max_frames=40, device="cpu", dtype="float32", backends=own)
    async with open_for_calls(AgentDesk(None, engine)) as address, page_of(browser, address) as page:
        await expect(page.locator("#about")).to_contain_text(f"{backend} backend")
        await watch_announcements(page)
        sample = await page.get_attribute("#sample", "value")
        await page.click("#sample")
        await expect(page.locator(".user")).to_have_text(str(sample))
        await expect(page.locator(".agent:not(:has(.coming:not(:empty)))")).to_have_count(2)
        await be_in_state(page, "listening")
        await expect(page.locator("#figures summary")).to_contain_text("ms after you sent it")
        assert await page.evaluate("announced") == ["Connected.", "Agent: Good morning!", "Agent: How do I sound?"]
        assert await page.is_hidden("#mute"), "there is no microphone"
        assert await violations(page) == []
        await page.click("#connect")
        await be_in_state(page, "offline")
        await expect(page.locator("#announcer")).to_have_text("The call is over.")


async def watch_announcements(page: Page) -> None:
    await page.evaluate(
        """() => {
            globalThis.announced = [];
            const live = [...document.querySelectorAll("[aria-live], [role=status], [role=alert], [role=log]")];
            for (const region of live) {
                new MutationObserver(() => announced.push(region.textContent))
                    .observe(region, { childList: true, characterData: true, subtree: true });
            }
        }"""
    )


async def test_a_spoken_conversation_with_barge_in(browser: Browser, speak_with: Any) -> None:
    speak_with(fakes(LONG_FRAMES))
    with MockOpenAI({LOW: ASKED, HIGH: STOPPED}, {ASKED: STORY, STOPPED: "All right."}) as mock:
        async with open_for_calls(AgentDesk(mock.url)) as address, page_of(browser, address, dark=True) as page:
            await expect(page.locator("#how")).to_contain_text("Interrupt whenever you like")
            await call(page)
            await expect(page.locator(".user").first).to_have_text(ASKED)
            await be_in_state(page, "speaking")
            mute = page.locator("#mute")
            await expect(mute).to_have_attribute("aria-pressed", "false")
            await expect(page.locator(".agent.cut")).to_have_count(1)
            await expect(page.locator(".user").nth(1)).to_have_text(STOPPED)
            await be_in_state(page, "speaking")
            await mute.click()
            await expect(mute).to_have_attribute("aria-pressed", "true")
            await expect(mute).to_have_text("Mute")
            assert await violations(page) == []
            await expect(page.locator("#figures summary")).to_contain_text("ms after you fell silent")
            await page.click("#connect")
            await be_in_state(page, "offline")
    assert mock.heard[:2] == pytest.approx([LOW, HIGH], rel=0.1)
    kept = mock.conversations[1][2]["content"]
    assert STORY.startswith(kept)
    assert 0 < len(kept) < len(STORY)


async def test_stop_and_escape_interrupt_without_a_word(browser: Browser, speak_with: Any) -> None:
    plug_in = fakes(LONG_FRAMES)
    speak_with(plug_in)
    async with open_for_calls(AgentDesk(None)) as address, page_of(browser, address) as page:
        await call(page)
        agent, cut = page.locator(".agent"), page.locator(".agent.cut")
        for stop in (lambda: page.click("#stop"), lambda: page.keyboard.press("Escape")):
            before, said = await cut.count(), await agent.count()
            await say(page, f"{WORDS} " * 10)
            await be_in_state(page, "speaking")
            await expect(agent.nth(said).locator("span").first).not_to_be_empty()
            await stop()
            await expect(cut).not_to_have_count(before)  # two sentences, where one had just ended
            await be_in_state(page, "listening")
            await expect(page.locator("#announcer")).to_contain_text("Agent, cut short: Good")
            while plug_in.loaded["fake"].streams:
                await asyncio.sleep(0.01)
        assert await page.is_disabled("#stop"), "there is nothing to stop"


async def test_a_page_that_is_scrolled_up_stays_there(browser: Browser, speak_with: Any) -> None:
    speak_with(fakes(2))
    async with open_for_calls(AgentDesk(None)) as address, page_of(browser, address, height=360) as page:
        await call(page)
        talk = page.locator("#talk")
        await say(page, f"{WORDS} " * 8)
        await expect(page.locator(".agent")).to_have_count(8)
        await be_in_state(page, "listening")
        below = "talk => talk.scrollHeight - talk.scrollTop - talk.clientHeight"
        assert await talk.evaluate(below) < 2, "the page scrolled with the transcript"
        await talk.focus()
        await page.keyboard.press("Home")
        await expect(talk).to_have_js_property("scrollTop", 0)
        await say(page, WORDS)
        await expect(page.locator(".agent")).to_have_count(9)
        assert await talk.evaluate("talk => talk.scrollTop") == 0


async def test_voice_language_and_backend_are_chosen(
    browser: Browser, speak_with: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    plug_in = fakes(4)
    plug_in.talkers["spare"] = replace(plug_in.talkers["fake"])
    speak_with(plug_in)
    asked: list[Any] = []
    speak = Engine.speak
    monkeypatch.setattr(Engine, "speak", lambda *given: (asked.append(given[2]), speak(*given))[1])
    desk = AgentDesk(None, Settings(backend="fake"), backends=["spare"])
    async with open_for_calls(desk) as address, page_of(browser, address) as page:
        voices = desk.reception.page.offered()["voice"]
        await page.select_option("select[name=voice]", voices[-1])
        await call(page)  # with the voice that was chosen before
        await say(page, WORDS)
        await expect(page.locator("#announcer")).to_contain_text(WORDS)
        await page.select_option("select[name=language]", "english")
        await page.select_option("select[name=backend]", "spare")
        await expect(page.locator("#about")).to_contain_text("spare backend")
        assert len(plug_in.loaded["spare"].prefills) == 0
        await say(page, WORDS)
        await expect(page.locator(".agent")).to_have_count(2)
        await be_in_state(page, "listening")
        assert len(plug_in.loaded["spare"].prefills) == 1
        assert [(options.voice, options.language) for options in asked] == [
            (voices[-1], "auto"),
            (voices[-1], "english"),
        ]

        await page.evaluate("document.querySelector('select[name=voice]').add(new Option('Nobody', 'nobody'))")
        await page.select_option("select[name=voice]", "nobody")
        await expect(page.locator("#notice")).to_contain_text(f"voice is 'nobody', expected {voices[0]}, ")
        await expect(page.locator("select[name=voice]")).to_have_value(voices[-1])


def on_fire(call: int) -> None:
    if call >= 5:
        raise RuntimeError("the device is on fire")


async def test_the_engine_s_error_stays_on_the_page(browser: Browser, speak_with: Any) -> None:
    speak_with(fakes(on_decode=on_fire))
    desk = AgentDesk(None)
    async with open_for_calls(desk) as address, page_of(browser, address) as page:
        await call(page)
        await say(page, WORDS)
        await be_in_state(page, "offline")
        await asyncio.wait_for(desk.over.wait(), HANG_S)
        await expect(page.locator("#connect")).to_be_enabled()  # it has asked the agent about itself since
        notice = await page.inner_text("#notice")
        assert notice.startswith("The agent had to end the call. cannot speak: ")
        assert "the device is on fire" in notice
        assert await violations(page) == []


async def test_the_header_names_the_backend_that_took_over(browser: Browser, speak_with: Any) -> None:
    plug_in: Fakes = fakes(on_decode=on_fire)
    plug_in.talkers["spare"] = replace(plug_in.talkers["fake"], on_decode=lambda call: None)
    speak_with(plug_in)
    async with open_for_calls(AgentDesk(None)) as address, page_of(browser, address) as page:
        await expect(page.locator("#about")).to_contain_text("fake backend")
        await call(page)
        await say(page, WORDS)
        await expect(page.locator("#about")).to_contain_text("spare backend")
        await expect(page.locator("#announcer")).to_have_text(f"Agent: {WORDS}")


COUNT_LOOKS = """() => {
    globalThis.looks = 0;
    const look = RTCPeerConnection.prototype.getStats;
    RTCPeerConnection.prototype.getStats = function (...of) { looks += 1; return look.apply(this, of); };
}"""


async def test_an_agent_that_was_killed_is_noticed_and_its_successor_reached(browser: Browser, tmp_path: Path) -> None:
    async with AsyncExitStack() as stack:
        with agent_at_work(tmp_path, "--text", environ=QUICK) as agent:
            page = await stack.enter_async_context(page_of(browser, agent.address))
            told = "import('/client/connection.js').then((it) => [it.LOOK_MS, it.LOST_LOOKS, it.LOST])"
            every_ms, most_looks, lost = await page.evaluate(told)
            most_looks += 1  # what was on its way still arrives
            assert every_ms * most_looks <= SOON_MS
            await page.evaluate(COUNT_LOOKS)
            await call(page)
            await say(page, f"{WORDS} " * 20)
            said = page.locator(".agent").first
            await expect(said).to_have_text(WORDS)
            await expect(page.locator(".agent").nth(1)).to_be_visible()
            await be_in_state(page, "speaking")
            agent.process.kill()
            agent.process.wait()
            looks = await page.evaluate("looks")
            await be_in_state(page, "offline")
            assert await page.evaluate("looks") - looks <= most_looks
            await expect(page.locator("#notice")).to_have_text(lost)
            await expect(page.locator("#how")).to_contain_text("goes on trying")
            assert await page.is_disabled("#connect")
        with agent_at_work(tmp_path, "--text", environ=QUICK, port=agent.port):
            await expect(page.locator("#connect")).to_be_enabled()
            await expect(page.locator("#notice")).to_have_text(lost)
            await expect(said).to_have_text(WORDS)
            before = await page.locator(".agent").count()
            await call(page)
            await say(page, WORDS)
            await expect(page.locator(".agent").nth(before)).to_have_text(WORDS)
            await be_in_state(page, "listening")


async def test_an_agent_that_is_told_to_stop_says_so(browser: Browser, speak_with: Any) -> None:
    speak_with(fakes(LONG_FRAMES))
    desk = AgentDesk(None)
    async with open_for_calls(desk) as address, page_of(browser, address) as page:
        await call(page)
        await desk.reception.let_go()
        await be_in_state(page, "offline")
        await expect(page.locator("#notice")).to_have_text("The agent ended the call.")
