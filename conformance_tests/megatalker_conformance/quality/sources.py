"""Finds the prompts that ``--prompts`` names, and downloads a dataset where it must."""

from pathlib import Path

from megatalker.checkpoint import Checkpoint
from megatalker.cli.verify.quality_options import QualityOptions
from megatalker.errors import InvalidRequestError
from megatalker.prompt.languages import name_of
from megatalker.voices import read_reference
from megatalker_conformance.quality.prompts import LIST, PromptSet, built_in, dataset, text_file

NAME, REPOSITORY = "seed-tts-eval", "zhaochenyang20/seed-tts-eval"
"""The dataset, and a copy of it on the hub in its own layout; its authors publish an archive only."""
PUBLISHED = {"en": 1088, "zh": 2020}
"""Prompts of each language in the published dataset."""
ALL = 1000
"""Prompts that come along: as many as ``--size all`` means there."""


def find_prompts(options: QualityOptions, checkpoint: Checkpoint, language: str) -> PromptSet:
    """Return the prompts, checked, all of them or as many as were asked for.

    Args:
        options: what is wanted.
        checkpoint: a ``base`` checkpoint must have recordings to clone.
        language: of texts whose source does not say it; ``auto``: English.

    Raises:
        InvalidRequestError: they cannot be read, have another digest than ``--digest``, or have no recordings; or a
            recording is given that cannot be cloned.
    """
    found = _named(options, "english" if language == "auto" else language)
    if options.digest is not None and found.digest != options.digest.lower():
        raise InvalidRequestError(
            f"the prompts have the digest {found.digest}, expected {options.digest}: they are others, or were changed"
        )
    if options.ref_audio is not None:
        if checkpoint.config.variant != "base":
            raise InvalidRequestError(
                f"{checkpoint.name} does not clone: leave --ref-audio out, or take a base checkpoint, such as demo-base"
            )
        read_reference(options.ref_audio)
        found = found.cloning(options.ref_audio, options.ref_text)
    elif options.ref_text is not None:
        raise InvalidRequestError("--ref-text says what is said in --ref-audio, which is not given")
    if checkpoint.config.variant == "base" and any(prompt.ref_audio is None for prompt in found.prompts):
        raise InvalidRequestError(
            "a base checkpoint speaks in cloned voices only: give --ref-audio and --ref-text, or prompts with "
            f"recordings ({NAME}, or a folder with {LIST})"
        )
    return found.sample(options.size)


def _named(options: QualityOptions, language: str) -> PromptSet:
    if options.prompts is None:
        if language != "english":
            raise InvalidRequestError(f"the prompts that come along are English, not {language}; give --prompts")
        return built_in(options.size or ALL)
    name, _, revision = options.prompts.partition("@")
    repository, _, part = name.partition("/")
    if repository == NAME and not Path(name).exists():
        code = part or next((code for code in PUBLISHED if name_of(code) == language), "en")
        return _published(code, revision or None)
    path = Path(options.prompts)
    if path.is_dir():
        folder = path if (path / LIST).is_file() else path / _code_of(path, language)
        return dataset(folder, path.name, name_of(folder.name) or language)
    if path.name == LIST:
        return dataset(path.parent, path.parent.name, name_of(path.parent.name) or language)
    return text_file(path, language)


def _code_of(path: Path, language: str) -> str:
    codes = [each.parent.name for each in sorted(path.glob(f"*/{LIST}"))]
    wanted = [code for code in codes if name_of(code) == language]
    if not wanted:
        raise InvalidRequestError(
            f"{str(path)!r} has no {LIST}, and none in a folder for {language}; found {', '.join(codes) or 'none'}"
        )
    return wanted[0]


def _published(code: str, revision: str | None) -> PromptSet:
    """Download one language of the dataset from the hub, or from the mirror that ``HF_ENDPOINT`` names."""
    from huggingface_hub import snapshot_download

    language = name_of(code)
    if code not in PUBLISHED or language is None:
        raise InvalidRequestError(f"{NAME} has no part {code!r}; expected {', '.join(PUBLISHED)}")
    try:
        wanted = [f"{code}/*", "README*", "LICEN*"]
        place = snapshot_download(REPOSITORY, repo_type="dataset", revision=revision, allow_patterns=wanted)
    except Exception as error:  # the hub's library raises errors of several libraries
        raise InvalidRequestError(
            f"{NAME} cannot be downloaded from {REPOSITORY}: {error}. Name a mirror with HF_ENDPOINT, or download "
            "the archive that its authors publish, and give --prompts FOLDER"
        ) from error
    commit = Path(place).name  # folders of the hub's cache are named after commits
    found = dataset(Path(place) / code, f"{REPOSITORY}/{code}@{commit}", language)
    if len(found.prompts) != PUBLISHED[code]:
        raise InvalidRequestError(
            f"{found.source} has {len(found.prompts)} prompts, and the published dataset {PUBLISHED[code]}: it was "
            "changed; name another revision with @REVISION, or a folder"
        )
    return found
