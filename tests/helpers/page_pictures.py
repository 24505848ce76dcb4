"""Pictures of the server's page for ``docs/``, from a real server with the built-in voice: ``make pictures``."""

import asyncio
import re
import sys
from pathlib import Path
from typing import Any

from playwright.async_api import Page, expect

from browser import open_page
from megatalker import Checkpoint
from serving import serving

PICTURES: dict[str, dict[str, Any]] = {
    "page-desktop": {"width": 1280, "height": 900},
    "page-dark": {"width": 1280, "height": 960, "dark": True},
    "page-phone": {"width": 360, "height": 780},
}
"""Name of the file, and how the page is opened for it."""
COMPARED = {"page-dark"}
MOST_BYTES = 150_000


async def take(url: str, folder: Path) -> None:
    """Write every picture into the folder, a second after the first sound."""
    for name, options in PICTURES.items():
        async with open_page(**options) as page:
            await page.goto(url)
            await page.get_by_text("ready").wait_for()
            await page.get_by_label("Seed").fill("7")
            if name in COMPARED:
                await compare(page)
            await page.get_by_role("button", name="Speak").click()
            played = page.locator(".panel:visible .played").last
            await expect(played).to_have_text(re.compile(r"[1-9]\.\d\d"))
            file = folder / f"{name}.png"
            await page.screenshot(path=file)
            assert file.stat().st_size < MOST_BYTES, f"{file} is too large"


async def compare(page: Page) -> None:
    """Two voices, the second one another than the first."""
    await page.get_by_label("Compare").check()
    await page.get_by_role("combobox", name="Voice").nth(1).select_option(index=1)


if __name__ == "__main__":
    with serving(Checkpoint.open("demo"), backend="auto") as served:
        asyncio.run(take(served.url, Path(sys.argv[1])))
