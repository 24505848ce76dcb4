import importlib.metadata
import logging
from collections.abc import Callable, Generator
from dataclasses import replace
from types import SimpleNamespace

import pluggy
import pytest
import torch

from megatalker.errors import BackendNotFoundError, BackendUnavailableError, PluginError, SettingsError
from megatalker.interfaces import (
    AVAILABLE,
    Availability,
    CodecBackend,
    CodecCapabilities,
    TalkerBackend,
    TalkerCapabilities,
)
from megatalker.plugins import BackendRegistry, hookimpl, probe
from megatalker.plugins.registry import BrokenPlugin
from megatalker.settings import Settings

CPU = torch.device("cpu")
CPU_ONLY = TalkerCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}))
CODEC_ON_CPU = CodecCapabilities(devices=frozenset({"cpu"}), dtypes=frozenset({torch.float32}))
ANY_CHECKPOINT = SimpleNamespace()
SETTINGS = Settings()


def _unused(*_: object) -> object:
    raise AssertionError("nothing is loaded here")


def talker(name: str = "theirs", **changes: object) -> TalkerBackend:
    spec = TalkerBackend(
        name=name, summary="s", api_version=2, capabilities=CPU_ONLY, probe=lambda *_: AVAILABLE, load=_unused
    )
    return replace(spec, **changes)


def codec(name: str = "theirs") -> CodecBackend:
    return CodecBackend(
        name=name, summary="s", api_version=2, capabilities=CODEC_ON_CPU, probe=lambda *_: AVAILABLE, load=_unused
    )


class BackendPlugin:
    def __init__(self, *backends: object) -> None:
        self.backends = backends

    @hookimpl
    def megatalker_backends(self) -> list[object]:
        return list(self.backends)


class Silent:
    @hookimpl
    def megatalker_backends(self) -> None:
        pass


def test_talkers_and_codecs_have_separate_names_and_stand_by_rank() -> None:
    registry = BackendRegistry([("one", BackendPlugin(talker("a"), talker("b", rank=5), codec("a")))])
    assert [spec.name for spec in registry.talkers] == ["b", "a"]
    assert registry.codec("a") in registry.codecs
    assert registry.origin(registry.talker("b")) == "one"


@pytest.mark.parametrize(
    ("plugin", "message"),
    [
        (
            BackendPlugin(talker("taken")),
            r"'second'.*talker backend name 'taken' is already taken by plug-in 'first'; rename",
        ),
        (
            BackendPlugin(talker(api_version=1)),
            r"'second'.*API version 1, this megatalker has 2; upgrade the plug-in \(megatalker's CHANGELOG.md lists",
        ),
        (
            BackendPlugin(talker(api_version=3)),
            r"API version 3, this megatalker has 2; upgrade the megatalker \(.*CHANGELOG",
        ),
        (BackendPlugin(talker("auto")), r"'auto' cannot name a backend"),
        (BackendPlugin(talker("Bad Name")), r"'Bad Name' cannot name a backend"),
        (BackendPlugin(talker("twice"), talker("twice")), r"already taken by plug-in 'second'"),
        (
            BackendPlugin("text"),
            r"'second' returned str from megatalker_backends, expected TalkerBackend or CodecBackend",
        ),
        (SimpleNamespace(), r"'second' has no function marked @megatalker.hookimpl"),
        (Silent(), r"'second' returned None from megatalker_backends, expected a list"),
    ],
)
def test_refused_plugin_is_named_with_the_fix_and_leaves_nothing(plugin: object, message: str) -> None:
    registry = BackendRegistry([("first", BackendPlugin(talker("taken")))])
    with pytest.raises(PluginError, match=message):
        registry.register(plugin, "second")
    assert [spec.name for spec in registry.talkers] == ["taken"]
    registry.register(BackendPlugin(talker("fresh")), "second")


def test_a_plugin_whose_hook_raises_leaves_nothing() -> None:
    class Raising:
        @hookimpl
        def megatalker_backends(self) -> list[object]:
            raise OSError("no licence")

    registry = BackendRegistry([("first", BackendPlugin(talker("a")))])
    with pytest.raises(OSError, match="no licence"):
        registry.register(Raising(), "second")
    registry.register(BackendPlugin(talker("b")), "third")
    assert {spec.name for spec in registry.talkers} == {"a", "b"}


def test_a_plugin_name_is_taken_once() -> None:
    registry = BackendRegistry([("one", BackendPlugin(talker("a")))])
    with pytest.raises(PluginError, match="a plug-in named 'one' is registered already; rename one of them"):
        registry.register(BackendPlugin(talker("b")), "one")
    assert [spec.name for spec in registry.talkers] == ["a"]


class First(BackendPlugin):
    @hookimpl(tryfirst=True)
    def megatalker_backends(self) -> list[object]:
        return list(self.backends)


class Last(BackendPlugin):
    @hookimpl(trylast=True)
    def megatalker_backends(self) -> list[object]:
        return list(self.backends)


def test_equal_ranks_stand_in_the_order_of_the_hook() -> None:
    registry = BackendRegistry(
        [
            ("last", Last(talker("c"), talker("best", rank=1))),
            ("first", First(talker("a"))),
            ("plain", BackendPlugin(talker("b1"), talker("b2"))),
        ]
    )
    assert [spec.name for spec in registry.talkers] == ["best", "a", "b1", "b2", "c"]


class Promoting:
    """Lets no CPU backend but ``kept`` through, ranks it highest, and adds one of its own."""

    @hookimpl(wrapper=True)
    def megatalker_backends(self) -> Generator[None, list[list[TalkerBackend]], list[list[TalkerBackend]]]:
        answers = yield
        kept = [replace(spec, rank=99) for answer in answers for spec in answer if spec.name == "kept"]
        return [kept, [talker("added")]]


class OldStyle:
    @hookimpl(hookwrapper=True)
    def megatalker_backends(self) -> Generator[None, pluggy.Result[list[list[TalkerBackend]]], None]:
        outcome = yield
        outcome.force_result([[spec for spec in answer if spec.name == "kept"] for answer in outcome.get_result()])


def test_a_wrapper_sees_and_changes_what_all_plugins_return() -> None:
    registry = BackendRegistry([("policy", Promoting()), ("one", BackendPlugin(talker("kept"), talker("hidden")))])
    assert [(spec.name, spec.rank) for spec in registry.talkers] == [("kept", 99), ("added", 0)]
    assert registry.origin(registry.talker("kept")) == "one"
    assert registry.origin(registry.talker("added")) == "policy"
    with pytest.raises(BackendNotFoundError, match="'hidden' is not installed; installed: added, kept"):
        registry.talker("hidden")
    filtered = BackendRegistry([("one", BackendPlugin(talker("kept"), talker("hidden"))), ("policy", OldStyle())])
    assert [spec.name for spec in filtered.talkers] == ["kept"]


def test_a_wrapper_that_breaks_the_answer_is_named_and_taken_out() -> None:
    class Breaking:
        @hookimpl(wrapper=True)
        def megatalker_backends(self) -> Generator[None, list[object], list[object]]:
            return [*(yield), ["text"]]

    registry = BackendRegistry([("one", BackendPlugin(talker("a")))])
    with pytest.raises(PluginError, match="'second' returned str from megatalker_backends"):
        registry.register(Breaking(), "second")
    assert [spec.name for spec in registry.talkers] == ["a"]


def test_misspelt_hook_is_refused() -> None:
    class Misspelt:
        @hookimpl
        def megatalker_backend(self) -> list[object]:
            return []

    with pytest.raises(PluginError, match="megatalker_backend"):
        BackendRegistry([("typo", Misspelt())])


def test_unknown_backend_lists_the_installed_ones_and_the_broken_plugins() -> None:
    registry = BackendRegistry([("one", BackendPlugin(talker("a"), talker("b")))])
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

    fake_entry_points(monkeypatch, broken=broken, good=lambda: BackendPlugin(talker("a")))
    registry = BackendRegistry.installed()
    assert [spec.name for spec in registry.talkers] == ["a"]
    assert "plug-in 'broken' is ignored: ImportError: no module named cuda" in caplog.text
    with pytest.raises(BackendNotFoundError, match=r"'b' is not installed.*plug-in 'broken' is broken: ImportError"):
        registry.talker("b")


def test_a_plugin_for_another_version_that_cannot_be_imported_is_told_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def import_what_version_1_had() -> object:
        from megatalker.interfaces import Capabilities

        return Capabilities

    fake_entry_points(monkeypatch, old=import_what_version_1_had)
    assert BackendRegistry.installed().talkers == []
    assert "cannot import name 'Capabilities'" in caplog.text
    assert "another API version than 2, upgrade one side (megatalker's CHANGELOG.md lists what each" in caplog.text


def test_plugins_of_equal_rank_stand_by_name_whatever_the_installer_did(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_entry_points(
        monkeypatch,
        m=lambda: BackendPlugin(talker("m")),
        z=lambda: BackendPlugin(talker("z")),
        a=lambda: BackendPlugin(talker("a")),
    )
    assert [spec.name for spec in BackendRegistry.installed().talkers] == ["a", "m", "z"]


def test_auto_takes_the_best_available_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="megatalker")
    registry = BackendRegistry(
        [("one", BackendPlugin(talker("fast", rank=9, probe=lambda *_: Availability("needs a GPU")), talker("slow")))]
    )
    assert registry.choose_talker("auto", ANY_CHECKPOINT, CPU, SETTINGS).name == "slow"
    assert "talker backend: slow" in caplog.text
    assert "fast: needs a GPU" in caplog.text


def test_asking_by_name_and_not_getting_it_is_an_error() -> None:
    registry = BackendRegistry(
        [("one", BackendPlugin(talker("fast", probe=lambda *_: Availability("needs a GPU")), talker("b")))]
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
    exact_no_more = replace(CODEC_ON_CPU, dtypes=frozenset({torch.bfloat16}))
    assert probe(replace(codec(), capabilities=exact_no_more), ANY_CHECKPOINT, CPU, half).available
    registry = BackendRegistry([("one", BackendPlugin(talker("fast", rank=9, capabilities=halves), talker("slow")))])
    assert registry.choose_talker("auto", ANY_CHECKPOINT, CPU, SETTINGS).name == "slow"
    assert registry.choose_talker("auto", ANY_CHECKPOINT, CPU, half).name == "fast"
    with pytest.raises(BackendUnavailableError, match="'fast' cannot run here: computes in bfloat16, not in float32"):
        registry.choose_talker("fast", ANY_CHECKPOINT, CPU, SETTINGS)


def test_settings_for_a_backend_that_is_not_installed_are_refused_with_the_close_one() -> None:
    registry = BackendRegistry([("one", BackendPlugin(talker("theirs"), codec("theirs")))])
    settings = Settings(backends={"thiers": {"size": 1}})
    with pytest.raises(SettingsError, match=r"unknown setting 'backends\.thiers'; did you mean 'backends\.theirs'\?"):
        registry.choose_talker("auto", ANY_CHECKPOINT, CPU, settings)
    assert registry.choose_codec("auto", ANY_CHECKPOINT, CPU, settings).name == "theirs"
    with pytest.raises(SettingsError, match=r"unknown setting 'codecs\.other'"):
        registry.choose_codec("auto", ANY_CHECKPOINT, CPU, Settings(codecs={"other": {}}))
    registry.broken.append(BrokenPlugin("two", "cannot be imported"))
    assert registry.choose_talker("auto", ANY_CHECKPOINT, CPU, settings).name == "theirs"


def test_the_best_codec_that_encodes_is_chosen_for_cloning() -> None:
    encodes = replace(CODEC_ON_CPU, encode=True)
    deaf, first, second = replace(codec("deaf"), rank=9), codec("first"), replace(codec("second"), rank=5)
    able = [replace(spec, capabilities=encodes) for spec in (first, second)]
    registry = BackendRegistry([("one", BackendPlugin(deaf, *able))])
    assert registry.choose_encoder(ANY_CHECKPOINT, CPU, SETTINGS).name == "second"
    registry = BackendRegistry([("one", BackendPlugin(deaf))])
    with pytest.raises(BackendUnavailableError, match="no installed codec encodes recordings; installed: deaf"):
        registry.choose_encoder(ANY_CHECKPOINT, CPU, SETTINGS)
