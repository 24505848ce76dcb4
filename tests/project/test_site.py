"""The site: built strictly, complete, and without anything from another server; its generated pages are current."""

import importlib
import logging
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import megatalker
from waiting import PROCESS_S

ROOT = Path(__file__).parents[2]
LOADED = {"script": "src", "link": "href", "img": "src", "iframe": "src", "audio": "src", "source": "src"}
"""Tags and attributes whose addresses a browser fetches by itself."""
NOT_FETCHED = {"canonical", "prev", "next"}


@pytest.fixture
def website(monkeypatch: pytest.MonkeyPatch):
    """Imports a module of the folder ``website``."""
    monkeypatch.syspath_prepend(str(ROOT / "website"))

    def imported(name: str) -> ModuleType:
        pytest.importorskip("mkdocs")
        return importlib.import_module(name)

    return imported


class Fetched(HTMLParser):
    """Addresses that a page makes a browser fetch, and its classes."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.classes: set[str] = set()
        self.feed(page.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.classes |= set((given.get("class") or "").split())
        if given.get("rel") not in NOT_FETCHED:
            self.addresses.append(given.get(LOADED.get(tag, ""), "") or "")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--config-file",
        "website/mkdocs.yml",
        "--site-dir",
        str(folder),
    ]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=os.environ | {"NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.slow
def test_nothing_comes_from_another_server(built: Path) -> None:
    pages = list(built.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        fetched = Fetched(page)
        assert not [address for address in fetched.addresses if re.match(r"(https?:)?//", address)], page
        assert "mermaid" not in fetched.classes, "Material fetches a script for it; graph.py draws these"
    for style in built.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", style.read_text(encoding="utf-8")), style


@pytest.mark.slow
def test_every_public_name_has_an_entry(built: Path) -> None:
    ids = set(re.findall(r'id="(megatalker[\w.]*)"', (built / "api.html").read_text(encoding="utf-8")))
    documented = {name.rpartition(".")[2] for name in ids}
    constants = {"AVAILABLE", "FRAME_SAMPLES", "FRAME_SECONDS", "SAMPLE_RATE", "hookimpl"}
    assert set(megatalker.__all__) - constants <= documented


def test_the_page_of_settings_is_current(website) -> None:
    pytest.importorskip("pipecat")
    page = website("settings_page")
    text = page.page()
    assert text == page.PAGE.read_text(encoding="utf-8"), "run `make docs`"
    assert "|  |" not in text, "a setting without a docstring"
    assert "| `port` | integer, ≥ 0, ≤ 65,535 | `8000` | 0 takes a free one, which the log names. |" in text


@pytest.mark.parametrize(
    ("link", "expected"),
    [
        ("[a](server.md#keys)", "[a](server.md#keys)"),
        ("[a](../README.md#try-it)", "[a](index.md#try-it)"),
        ("[a](../pyproject.toml)", "a"),
        ("[![a](demo.png)](../README.md)", "[![a](demo.png)](index.md)"),
        ("[a](https://example.com)", "[a](https://example.com)"),
        ("```text\n[a](nowhere.md)\n```", "```text\n[a](nowhere.md)\n```"),
    ],
)
def test_links_lead_to_where_the_site_shows_their_target(website, link: str, expected: str) -> None:
    assert rewritten(website("hooks"), link) == expected


def test_links_lead_to_the_repository_where_it_has_an_address(website) -> None:
    assert rewritten(website("hooks"), "[a](../deploy)", "https://x.org/y/") == "[a](https://x.org/y/blob/main/deploy)"


@pytest.mark.parametrize("target", ["nowhere.md", "../benchmark", "demo.jpg#x"])
def test_a_link_that_leads_nowhere_is_a_warning(website, caplog: pytest.LogCaptureFixture, target: str) -> None:
    with caplog.at_level(logging.WARNING):
        rewritten(website("hooks"), f"[a]({target})")
    assert f"docs/operation.md: the link to {target!r} leads nowhere" in caplog.text


def rewritten(hooks: ModuleType, markdown: str, repository: str = "") -> str:
    shown = {"docs/operation.md": "operation.md", "docs/server.md": "server.md", "README.md": "index.md"}
    shown |= {"docs/demo.png": "demo.png"}
    files = [SimpleNamespace(src_uri=uri, abs_src_path=str(ROOT / path)) for path, uri in shown.items()]
    page = SimpleNamespace(file=files[0])
    return hooks.on_page_markdown(markdown, page, SimpleNamespace(repo_url=repository), files)


def test_a_graph_is_drawn_without_arrows_that_follow_from_others(website) -> None:
    drawing = website("graph").draw("graph LR\n  a --> b\n  b --> c\n  a --> c\n  d\n")
    assert re.findall(r"<text[^>]*>(\w)</text>", drawing) == ["a", "d", "b", "c"]
    assert drawing.count('class="arrow"') == 2
    assert "not drawn" in drawing
    assert "not drawn" not in website("graph").draw("  a --> b\n")
