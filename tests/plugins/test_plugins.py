import importlib.metadata
import logging
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from megatalker.errors import BackendNotFoundError, BackendUnavailableError, PluginError, SettingsError
from megatalker.interfaces import AVAILABLE, Availability, Capabilities, CodecBackend, TalkerBackend
from megatalker.plugins import BackendRegistry, hookimpl, probe
from megatalker.plugins.registry import BrokenPlugin
from megatalker.settings import Settings

CPU = torch.device("cpu")
CPU_ONLY = Capabilities(devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}))
ANY_CHECKPOINT = SimpleNamespace()
SETTINGS = Settings()


def _unused(*_: object) -> object:
    raise AssertionError("nothing is loaded here")


def talker(name: str = "theirs", **changes: object) -> TalkerBackend:
    spec = TalkerBackend(
        name=name, summary="s", api_version=1, capabilities=CPU_ONLY, probe=lambda *_: AVAILABLE, load=_unused
    )
    return replace(spec, **changes)


def codec(name: str = "theirs") -> CodecBackend:
    return CodecBackend(
        name=name, summary="s", api_version=1, capabilities=CPU_ONLY, probe=lambda *_: AVAILABLE, load=_unused
    )


class Plugin:
    def __init__(self, *backends: object) -> None:
        self.backends = backends

    @hookimpl
    def megatalker_backends(self) -> list[object]:
        return list(self.backends)


def test_talkers_and_codecs_have_separate_names_and_stand_by_rank() -> None:
    registry = BackendRegistry([("one", Plugin(talker("a"), talker("b", rank=5), codec("a")))])
    assert [spec.name for spec in registry.talkers] == ["b", "a"]
    assert registry.codec("a") in registry.codecs
    assert registry.origin(registry.talker("b")) == "one"


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (Plugin(talker("taken")), r"'second'.*talker backend name 'taken' is already taken by plug-in 'first'; rename"),
        (Plugin(talker(api_version=0)), r"'second'.*API version 0, this megatalker has 1; upgrade the plug-in"),
        (Plugin(talker(api_version=2)), r"API version 2, this megatalker has 1; upgrade the megatalker"),
        (Plugin(talker("auto")), r"'auto' cannot name a backend"),
        (Plugin(talker("Bad Name")), r"'Bad Name' cannot name a backend"),
        (Plugin(talker("twice"), talker("twice")), r"already taken by plug-in 'second'"),
        (Plugin("text"), r"'second' returned str from megatalker_backends, expected TalkerBackend or CodecBackend"),
        (SimpleNamespace(), r"'second' has no function marked @megatalker.hookimpl"),
    ],
)
def test_refused_plugin_is_named_with_the_fix_and_leaves_nothing(plugin: object, message: str) -> None:
    registry = BackendRegistry([("first", Plugin(talker("taken")))])
    with pytest.raises(PluginError, match=message):
        registry.register(plugin, "second")
    assert [spec.name for spec in registry.talkers] == ["taken"]
    registry.register(Plugin(talker("fresh")), "second")


def test_misspelt_hook_is_refused() -> None:
    class Misspelt:
        @hookimpl
        def megatalker_backend(self) -> list[object]:
            return []

    with pytest.raises(PluginError, match="megatalker_backend"):
        BackendRegistry([("typo", Misspelt())])


def test_unknown_backend_lists_the_installed_ones_and_the_broken_plugins() -> None:
    registry = BackendRegistry([("one", Plugin(talker("a"), talker("b")))])
    with pytest.raises(BackendNotFoundError, match=r"'megakernel' is not installed; installed: a, b\. Install"):
        registry.talker("megakernel")


def fake_entry_points(monkeypatch: pytest.MonkeyPatch, **loaders: Callable[[], object]) -> None:
    entries = [SimpleNamespace(name=name, load=load) for name, load in loaders.items()]
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: entries if group == "megatalker" else [])


def test_broken_plugin_nobody_asked_for_only_warns(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken() -> object:
        raise ImportError("no module named cuda")

    fake_entry_points(monkeypatch, broken=broken, good=lambda: Plugin(talker("a")))
    registry = BackendRegistry.installed()
    assert [spec.name for spec in registry.talkers] == ["a"]
    assert "plug-in 'broken' is ignored: ImportError: no module named cuda" in caplog.text
    with pytest.raises(BackendNotFoundError, match=r"'b' is not installed.*plug-in 'broken' is broken: ImportError"):
        registry.talker("b")


def test_auto_takes_the_best_available_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatalker")
    registry = BackendRegistry(
        [("one", Plugin(talker("fast", rank=9, probe=lambda *_: Availability("needs a GPU")), talker("slow")))]
    )
    assert registry.choose_talker("auto", ANY_CHECKPOINT, CPU, SETTINGS).name == "slow"
    assert "talker backend: slow" in caplog.text
    assert "fast: needs a GPU" in caplog.text


def test_asking_by_name_and_not_getting_it_is_an_error() -> None:
    registry = BackendRegistry(
        [("one", Plugin(talker("fast", probe=lambda *_: Availability("needs a GPU")), talker("b")))]
    )
    with pytest.raises(BackendUnavailableError, match="'fast' cannot run here: needs a GPU"):
        registry.choose_talker("fast", ANY_CHECKPOINT, CPU, SETTINGS)
    with pytest.raises(BackendUnavailableError, match="no codec backend can run on cpu: none is installed"):
        registry.choose_codec("auto", ANY_CHECKPOINT, CPU, SETTINGS)


def test_probe_checks_the_device_and_turns_exceptions_into_reasons() -> None:
    assert probe(talker(), ANY_CHECKPOINT, torch.device("cuda"), SETTINGS).reason == "runs on cpu, not on cuda"
    assert probe(talker(probe=_unused), ANY_CHECKPOINT, CPU, SETTINGS).reason == (
        "its probe failed: AssertionError: nothing is loaded here"
    )


def test_probe_checks_the_dtype_which_codecs_need_not_share() -> None:
    half = Settings(dtype="bfloat16")
    reason = "computes in float32, not in bfloat16; choose another dtype"
    assert probe(talker(), ANY_CHECKPOINT, CPU, half).reason == reason
    assert probe(talker(probe=lambda *_: Availability("no")), ANY_CHECKPOINT, CPU, half).reason == "no"
    assert probe(codec(), ANY_CHECKPOINT, CPU, half).available
    halves = replace(CPU_ONLY, dtypes=frozenset({torch.bfloat16}))
    assert probe(replace(codec(), capabilities=halves), ANY_CHECKPOINT, CPU, half).available
    registry = BackendRegistry([("one", Plugin(talker("fast", rank=9, capabilities=halves), talker("slow")))])
    assert registry.choose_talker("auto", ANY_CHECKPOINT, CPU, SETTINGS).name == "slow"
    assert registry.choose_talker("auto", ANY_CHECKPOINT, CPU, half).name == "fast"
    with pytest.raises(BackendUnavailableError, match="'fast' cannot run here: computes in bfloat16, not in float32"):
        registry.choose_talker("fast", ANY_CHECKPOINT, CPU, SETTINGS)


def test_settings_for_a_backend_that_is_not_installed_are_refused_with_the_close_one() -> None:
    registry = BackendRegistry([("one", Plugin(talker("theirs"), codec("theirs")))])
    settings = Settings(backends={"thiers": {"size": 1}})
    with pytest.raises(SettingsError, match=r"unknown setting 'backends\.thiers'; did you mean 'backends\.theirs'\?"):
        registry.choose_talker("auto", ANY_CHECKPOINT, CPU, settings)
    assert registry.choose_codec("auto", ANY_CHECKPOINT, CPU, settings).name == "theirs"
    with pytest.raises(SettingsError, match=r"unknown setting 'codecs\.other'"):
        registry.choose_codec("auto", ANY_CHECKPOINT, CPU, Settings(codecs={"other": {}}))
    registry.broken.append(BrokenPlugin("two", "cannot be imported"))
    assert registry.choose_talker("auto", ANY_CHECKPOINT, CPU, settings).name == "theirs"
