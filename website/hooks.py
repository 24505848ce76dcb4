"""Hooks of MkDocs: pages from outside of docs/, links within the repository, drawings."""

import logging
import posixpath
import re
from functools import partial
from pathlib import Path, PurePosixPath

from graph import draw
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = "docs"
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "THIRD_PARTY.md": "third-party.md",
    "conformance_tests/MISTAKES.md": "mistakes.md",
    "conformance_tests/README.md": "conformance-suite.md",
    "core/megatalker/checkpoint/demo/MODEL_CARD.md": "model-card.md",
    "examples/demo_voice/README.md": "demo-voice.md",
    "pipecat_adapter/README.md": "pipecat-service.md",
    "website/site.css": "site.css",
}
"""Files of the repository that the site shows, and where."""
RESULTS = "benchmarks/results"
LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:!\[[^\]]*\]\([^)]*\)|[^\]])*)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
GRAPH = re.compile(r"^```mermaid\n(.*?)^```$", re.MULTILINE | re.DOTALL)
logger = logging.getLogger("mkdocs.hooks.megatalker")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages and results that lie outside of docs/."""
    shown = ELSEWHERE | {
        path.relative_to(ROOT).as_posix(): path.relative_to(ROOT / "benchmarks").as_posix()
        for path in (ROOT / RESULTS).rglob("*")
        if path.is_file()
    }
    for source, target in shown.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Draw graphs, and point links that leave docs/ to where the site shows their target."""
    markdown = GRAPH.sub(lambda found: draw(found[1]), markdown)
    change = partial(_link, page=page, config=config, files=files)
    parts, end = [], 0
    for fence in FENCE.finditer(markdown):
        parts += [LINK.sub(change, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, LINK.sub(change, markdown[end:])])


def _link(found: re.Match[str], page: Page, config: MkDocsConfig, files: Files) -> str:
    text = LINK.sub(partial(_link, page=page, config=config, files=files), found["text"])
    target, _, anchor = found["target"].partition("#")
    if not target or re.match(r"[a-z]+:", target):
        return found[0]
    here = _source(page.file)
    there = posixpath.normpath(posixpath.join(posixpath.dirname(here), target))
    if not (ROOT / there).exists():
        logger.warning("%s: the link to %r leads nowhere", here, found["target"])
        return found[0]
    shown = next((file.src_uri for file in files if _source(file) == there), None)
    if shown is not None:
        uri = posixpath.relpath(shown, posixpath.dirname(page.file.src_uri) or ".")
        return f"{found['image']}[{text}]({uri}{'#' + anchor if anchor else ''})"
    if config.repo_url:
        return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{there})"
    return text


def _source(file: File) -> str:
    """Where a file of the site lies in the repository."""
    if file.abs_src_path is None or not PurePosixPath(file.abs_src_path).is_relative_to(ROOT):
        return ""
    return Path(file.abs_src_path).relative_to(ROOT).as_posix()
