"""The pages about browsers and the WebSocket: the JavaScript speaks in a browser, and a table says what bytes are."""

import re
import struct
from pathlib import Path

import pytest

from browser import open_page
from megatalker.serving.protocol import packets
from serving import TEXT, Server, fakes_with
from snippets import snippets

PAGE = Path(__file__).parents[2] / "docs" / "websocket.md"
SAY, SPEAK = (snippet.text for snippet in snippets(PAGE.with_name("browser.md")) if snippet.language == "javascript")


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_javascript_plays_and_shows_words(serve: Server) -> None:
    served = serve(fakes_with(frames=20))
    script = SPEAK.replace("ws://localhost:8000", served.url.replace("http", "ws"))
    async with open_page("--autoplay-policy=no-user-gesture-required") as page:
        await page.goto(served.url)
        found = await page.evaluate(
            """async ([script, text]) => {
                const played = [], words = [];
                const start = AudioBufferSourceNode.prototype.start;
                AudioBufferSourceNode.prototype.start = function (at) {
                    played.push([at, this.buffer.duration, Math.max(...this.buffer.getChannelData(0).map(Math.abs))]);
                    start.call(this, at);
                };
                const speak = eval(`(${script})`);
                const onWord = (word) => words.push(word.before + word.word);
                const done = await speak(text, { voice: "vivian", onWord });
                const refused = await speak(text, { voice: "nobody" }).catch((error) => error.message);
                return { played, words, reason: done.finish_reason, refused };
            }""",
            [script, TEXT],
        )
    assert found["reason"] == "eos"
    assert "".join(found["words"]) == TEXT
    assert sum(seconds for _, seconds, _ in found["played"]) == pytest.approx(20 * 0.08)
    assert all(0 < peak <= 1 for _, _, peak in found["played"])
    begins = [at for at, _, _ in found["played"]]
    assert begins == sorted(begins)
    assert "nobody" in found["refused"]


@pytest.mark.slow
@pytest.mark.asyncio
async def test_the_javascript_for_a_whole_text_plays(serve: Server) -> None:
    served = serve(fakes_with(frames=20))
    script = SAY.replace("http://localhost:8000", served.url)
    async with open_page("--autoplay-policy=no-user-gesture-required") as page:
        await page.goto(served.url)
        found = await page.evaluate(
            """async ([script, text]) => {
                const say = eval(`(${script})`);
                const audio = await say(text, { voice: "vivian" });
                const refused = await say(text, { voice: "nobody" }).catch((error) => error.message);
                return { seconds: audio.duration, paused: audio.paused, refused };
            }""",
            [script, TEXT],
        )
    assert found["seconds"] == pytest.approx(20 * 0.08, abs=0.1)
    assert not found["paused"]
    assert "nobody" in found["refused"]


def test_the_table_of_a_packet_is_the_header_that_is_sent() -> None:
    rows = re.findall(r"^\| (\d+) \| (\d+) \| ", PAGE.read_text(), re.MULTILINE)
    header = struct.Struct("<BBHIQHH")
    assert header.format == packets._HEADER.format
    offsets, at = [], 0
    for code in "BBHIQHH":
        size = struct.calcsize("<" + code)
        offsets.append((str(at), str(size)))
        at += size
    assert rows == offsets
    assert f"| {at} | | the `id`" in PAGE.read_text()
