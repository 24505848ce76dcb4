"""The ``megakernel`` decoder when a launch stops, or when something is missing."""

from dataclasses import replace

import pytest
import torch

from decoder_voices import SEEDED, codes_of, say, voice
from megakernel_helpers import CPU, megakernel, within
from megatalker.checkpoint import Checkpoint
from megatalker.errors import BackendFaultError, BackendUnavailableError
from megatalker.interfaces import DecodeStep, LoadContext
from megatalker_backends.megakernel.machine import Machine
from megatalker_backends.megakernel.settings import MegakernelSettings, why_not
from megatalker_backends.megakernel.spec import TALKER
from megatalker_kernels.errors import KernelStalledError
from megatalker_kernels.schedule import Launch

# --- faults


class Stalling:
    """A machine whose next launch is abandoned, as the kernel reports it."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.stalls = True

    def run(self, launch: Launch) -> int:
        return self._machine.run(launch)

    def wait(self, ticket: int) -> list[tuple[int, ...]]:
        if self.stalls:
            self.stalls = False
            raise KernelStalledError("block 3 is behind, in phase 7", phase=7, block=3)
        return self._machine.wait(ticket)

    def check(self) -> None:
        self._machine.check()


class StallingOnDevice(Stalling):
    """The kernel itself, whose next launch stalls on purpose."""

    def run(self, launch: Launch) -> int:
        launch = replace(launch, stall_phase=7, stall_block=3) if self.stalls and launch.mode == "decode" else launch
        return self._machine.run(launch)

    def wait(self, ticket: int) -> list[tuple[int, ...]]:
        self.stalls = False
        return self._machine.wait(ticket)


@pytest.mark.parametrize("wide_from", [1, 9], ids=["wide", "narrow"])
def test_an_abandoned_launch_is_a_fault_and_its_streams_are_lost(
    device: str, tiny_1b7: Checkpoint, wide_from: int
) -> None:
    decoder = megakernel(tiny_1b7, device, max_streams=2, wide_from=wide_from)
    each = voice(tiny_1b7, 1, 20, 3, SEEDED)
    expected = codes_of(say(decoder, each))
    stream, idle = decoder.prefill([each.request])[0], decoder.prefill([each.request])[0]
    within(decoder)._machine = (Stalling if device == "cpu" else StallingOnDevice)(within(decoder)._ready())
    with pytest.raises(BackendFaultError, match=r"block 3 .*in phase 7.* the 2 streams it held are lost"):
        decoder.decode([DecodeStep(stream, each.text[0])])()
    for lost in (stream, idle):
        with pytest.raises(BackendFaultError, match="was lost"):
            decoder.decode([DecodeStep(lost, each.text[0])])()
        decoder.release(lost)
    within(decoder)._prefix._store.fill_(1e3)  # an abandoned prompt may have left anything there
    assert codes_of(say(decoder, each)) == expected


# --- availability


def test_the_reason_why_it_cannot_run_is_given(tiny_1b7: Checkpoint) -> None:
    config = tiny_1b7.config
    assert why_not(config, CPU, MegakernelSettings()) == (
        "needs a CUDA GPU; on a CPU set backends.megakernel.interpret = true"
    )
    assert why_not(config, CPU, MegakernelSettings(interpret=True)) is None
    odd = replace(config, talker=replace(config.talker, hidden_size=100))
    reason = why_not(odd, CPU, MegakernelSettings(interpret=True))
    assert reason == "the talker's hidden size is 100, expected a multiple of 32"
    reason = why_not(config, CPU, MegakernelSettings(interpret=True, blocks=133))
    assert reason == "blocks is 133, but this GPU runs 132 at once; lower the backend's blocks"
    reason = why_not(config, CPU, MegakernelSettings(interpret=True, stages=99))
    assert reason is not None
    assert reason.startswith("stages is 99, but ")
    assert TALKER.probe(tiny_1b7, CPU, MegakernelSettings()).reason == why_not(config, CPU, MegakernelSettings())
    with pytest.raises(BackendUnavailableError, match="needs a CUDA GPU"):
        TALKER.load(tiny_1b7, LoadContext(CPU, torch.bfloat16, MegakernelSettings()))
    with pytest.raises(BackendUnavailableError, match="computes in bfloat16"):
        TALKER.load(tiny_1b7, LoadContext(CPU, torch.float32, MegakernelSettings(interpret=True)))


def test_the_cuda_extra_is_named(tiny_1b7: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("megatalker_backends.megakernel.settings.why_not_compile", lambda: "pip install it")
    assert why_not(tiny_1b7.config, torch.device("cuda"), MegakernelSettings()) == "pip install it"


def test_a_ring_holds_more_than_is_requested() -> None:
    with pytest.raises(ValueError, match="stages is 3, expected more than in_flight, which is 3"):
        MegakernelSettings(stages=3, in_flight=3)
