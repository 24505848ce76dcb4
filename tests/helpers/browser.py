"""Chromium without a screen, for tests of the pages."""

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, async_playwright, expect

from waiting import HANG_S

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")

QUIET = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-gpu",
    "--disable-quic",
    "--disable-sync",
    "--no-first-run",
    "--no-sandbox",  # a test may run as root
)
"""Nothing that reaches for the network by itself."""
SLOWEST_MS = 1000 * HANG_S
"""Longest time of any action of a page."""


def needs_chromium() -> str:
    """The browser's path; skips the test where there is none, except in CI, which installs it."""
    if CHROMIUM is None:
        missing = "no Chromium here: install the package chromium (Debian), or Google Chrome"
        if os.environ.get("CI"):
            pytest.fail(missing)
        pytest.skip(missing)
    return CHROMIUM


@asynccontextmanager
async def open_browser(*arguments: str, microphone: Path | None = None) -> AsyncIterator[Browser]:
    """A fresh browser; ``microphone`` is a WAV file that its pages hear again and again."""
    if microphone is not None:
        arguments += (
            "--use-fake-device-for-media-stream",
            "--use-fake-ui-for-media-stream",
            f"--use-file-for-fake-audio-capture={microphone}",
        )
    expect.set_options(timeout=SLOWEST_MS)
    async with async_playwright() as playwright:
        chromium, args = needs_chromium(), [*QUIET, *arguments]
        browser = await playwright.chromium.launch(executable_path=chromium, args=args, timeout=SLOWEST_MS)
        try:
            yield browser
        finally:
            await browser.close()


async def new_page(browser: Browser, width: int = 1280, height: int = 800, dark: bool = False) -> Page:
    """An empty page."""
    scheme: Literal["dark", "light"] = "dark" if dark else "light"
    page = await browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.set_default_timeout(SLOWEST_MS)
    return page


@asynccontextmanager
async def open_page(
    *arguments: str, width: int = 1280, height: int = 800, dark: bool = False, microphone: Path | None = None
) -> AsyncIterator[Page]:
    """An empty page of a browser of its own; arguments as of :func:`open_browser` and :func:`new_page`."""
    async with open_browser(*arguments, microphone=microphone) as browser:
        yield await new_page(browser, width, height, dark)


async def violations(page: Page) -> list[str]:
    """Return the violations that axe finds on the page: a line for each rule with the elements that break it."""
    found = (await Axe().run(page)).response["violations"]
    return [f"{rule['id']}: {rule['help']}: {[node['target'] for node in rule['nodes']]}" for rule in found]
