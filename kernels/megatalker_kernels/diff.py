"""Runs the kernel and its specification side by side on a GPU: ``megatalker bench kernel --help``.

Without further options: three prompts, then frames for 1, 3 and 8 streams; states are compared after
each launch, and every sampled code is checked against the specification's sampler on the kernel's own logits.
``--all`` compares after every phase, each from the kernel's own state before it, so that errors do not add up.
"""

import argparse
import json
import logging
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from megatalker_kernels.comparison import Difference, compare
from megatalker_kernels.errors import KernelStalledError
from megatalker_kernels.launching import SOURCES, Kernel, Module
from megatalker_kernels.model import PackedModel
from megatalker_kernels.module import GpuModule, capability, processors
from megatalker_kernels.nvrtc import architecture, compile_kernel
from megatalker_kernels.schedule import Launch, PackedRows, schedule
from megatalker_kernels.shapes import KernelShape, shared_bytes
from megatalker_kernels.spec.frame import Specification
from megatalker_kernels.timing import time_frames
from megatalker_kernels.trial import CODE_GROUPS, MODELS, TrialStreams, fill_streams, pages_for, random_model
from megatalker_kernels.workspace import Workspace

PHASE_TOLERANCE = 2.0**-8
"""Tolerance for one phase from equal inputs: another order of summation changes the rounding of a bfloat16."""
LAUNCH_TOLERANCE = 5e-2
"""Tolerance for a whole launch: such differences, carried through all layers."""
POSITIONS = (20, 63, 64, 65, 130, 300, 511, 1000)
PROMPT_ROWS = 20


class KernelDiff:
    """Kernel and specification on one model, each with its own workspace."""

    def __init__(
        self,
        model: PackedModel,
        modules: Sequence[Module],
        positions: tuple[int, ...],
        stall_timeout_s: float,
    ) -> None:
        self.model = model
        self.modules = modules
        self.shape = model.shape
        spaces = [Workspace(model.shape, len(positions), pages_for(positions), model.device) for _ in range(3)]
        self.ours, self.theirs, self.before = spaces
        self.streams: TrialStreams = fill_streams(self.ours, positions)
        self.kernel = Kernel(model, self.ours, *modules, stall_timeout_s=stall_timeout_s)
        self.specification = Specification(model, self.theirs)
        self.sampler = Specification(model, self.before)

    def launch(self, launch: Launch) -> dict[str, Any]:
        """Do one launch on both, and return what differs afterwards."""
        self.before.copy_from(self.ours)
        self.theirs.copy_from(self.ours)
        ticket = self.kernel.run(launch)
        codes = self.kernel.wait(ticket) if launch.mode == "decode" and not launch.stop_after else []
        self.kernel.check()
        result: dict[str, Any] = {"codes": codes}
        forced = launch
        if codes:
            # The sampler is exact, so it is asked about the kernel's own logits; all else is compared along its codes.
            result["wrong_codes"] = self._wrong_codes(launch, codes)
            pairs = zip(launch.rows, codes, strict=True)
            forced = replace(launch, rows=tuple(row._replace(forced=chosen) for row, chosen in pairs))
        self.specification.run(forced)
        return result | self._report(LAUNCH_TOLERANCE)

    def _wrong_codes(self, launch: Launch, codes: list[tuple[int, ...]]) -> list[dict[str, int]]:
        for mine, theirs in ((self.before, self.ours), (self.before.wide, self.ours.wide)):
            mine.predictor_logits.copy_(theirs.predictor_logits)
        expected = self.sampler.choices(launch)
        return [
            {"row": row, "codebook": codebook, "kernel": found, "specification": wanted}
            for row, (ours, theirs) in enumerate(zip(codes, expected, strict=True))
            for codebook, (found, wanted) in enumerate(zip(ours, theirs, strict=True))
            if found != wanted
        ]

    def phases(self, launch: Launch) -> Iterator[dict[str, Any]]:
        """Every phase for itself, from the kernel's state before it."""
        self.before.copy_from(self.ours)
        phases = self.specification.phases(launch)
        count = len(list(schedule(self.shape, launch)))
        for number in range(1, count + 1):
            self.theirs.copy_from(self.ours)
            phase = next(phases)
            self.ours.copy_from(self.before)
            # what ends a launch belongs to its last phase
            self.kernel.run(replace(launch, stop_after=number if number < count else 0))
            self.kernel.check()
            yield {"phase": number, "kind": f"{phase.stack} {phase.type.kind}", "name": str(phase)} | self._report(
                PHASE_TOLERANCE
            )

    def _report(self, tolerance: float) -> dict[str, Any]:
        self.ours.check_guards()
        differences = compare(self.ours, self.theirs, tolerance)
        return {"ok": not any(item.wrong for item in differences), "differences": differences}

    def stall(self, launch: Launch, phase: int, block: int) -> dict[str, Any]:
        """A block stops on purpose: how the kernel ends, and whether the next launch works."""
        self.before.copy_from(self.ours)
        began = time.perf_counter()
        try:
            self.kernel.wait(self.kernel.run(replace(launch, stall_phase=phase, stall_block=block)))
            self.kernel.check()
        except KernelStalledError as error:
            seconds = time.perf_counter() - began
            self.ours.copy_from(self.before)
            again = self.launch(launch)
            return {"ok": again["ok"] and error.phase == phase, "detected_ms": seconds * 1e3, "error": str(error)}
        return {"ok": False, "error": "nothing was reported"}


def cases(bench: KernelDiff) -> Iterator[tuple[str, Launch]]:
    """Prompts, then frames of mixed sampling kinds for growing batches."""
    packed = PackedRows([(0, range(PROMPT_ROWS), True), (3, range(60, 67), True), (4, range(125, 131), True)])
    yield "prefill of three prompts", Launch("prefill", packed, wide=True)
    slots = len(bench.streams.positions)
    for chosen in (range(1), range(1, 2), range(2, min(5, slots)), range(slots)):
        for frame in (0, 5):
            yield f"decode slots {list(chosen)} frame {frame}", Launch("decode", bench.streams.rows(chosen, frame))
    yield f"wide decode slots 0..{slots - 1}", Launch("decode", bench.streams.rows(range(slots), 6), wide=True)


def main(arguments: list[str] | None = None) -> int:
    options = _parse(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    if not torch.cuda.is_available():
        _say("the kernel runs on a CUDA GPU, and this torch sees none")
        return 2
    torch.backends.cuda.matmul.allow_tf32 = False
    device = torch.device("cuda", torch.cuda.current_device())
    talker, predictor = MODELS[options.model]
    if options.layers:
        talker = replace(talker, layers=min(talker.layers, options.layers))
        predictor = replace(predictor, layers=min(predictor.layers, options.layers))
    shape = KernelShape.fit(
        talker,
        predictor,
        code_groups=CODE_GROUPS,
        max_positions=4096,
        processors=options.blocks or processors(device),
        capability=capability(device),
        in_flight=options.in_flight,
    )
    if options.stages:
        shape = replace(shape, stages=options.stages)
    cubins = [compile_kernel(shape, architecture(capability(device)), source=source) for source in SOURCES]
    modules = [GpuModule(cubin.code, device) for cubin in cubins]
    began = time.perf_counter()
    model = random_model(shape, device)
    torch.cuda.synchronize()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device),
        "torch": torch.__version__,
        "model": options.model,
        "shape": {"blocks": shape.blocks, "stages": shape.stages, "in_flight": shape.in_flight},
        "shared_bytes": shared_bytes(shape),
        "usage": {
            source: {"registers": cubin.usage.registers, "spilled_bytes": cubin.usage.spilled_bytes}
            for source, cubin in zip(SOURCES, cubins, strict=True)
        },
        "packed_s": time.perf_counter() - began,
    }
    _say(json.dumps(report))
    failed = 0
    if options.time:
        report["timing"] = time_frames(model, modules, frames=options.frames, say=_say)
    else:
        bench = KernelDiff(model, modules, POSITIONS, options.stall_timeout)
        report["cases"], failed = _run(bench, options)
    if options.json:
        options.json.write_text(json.dumps(report, indent=1, default=Difference.as_dict) + "\n", encoding="utf-8")
    _say("FAILED" if failed else "ok")
    return 1 if failed else 0


def _run(bench: KernelDiff, options: argparse.Namespace) -> tuple[list[dict[str, Any]], int]:
    results: list[dict[str, Any]] = []
    for name, launch in cases(bench):
        try:
            if options.all and not launch.wide:
                results += [{"case": name} | phase for phase in bench.phases(launch)]
            elif not (launch.wide and (options.all or options.stop_after)):
                results.append({"case": name} | bench.launch(replace(launch, stop_after=options.stop_after)))
                _show(results[-1])
        except KernelStalledError as error:
            results.append({"case": name, "ok": False, "error": str(error)})
            _say(f"WRONG {name}: {error}")
            bench.ours.copy_from(bench.before)
    if options.all:
        _summarise(results)
    elif not options.stop_after:
        launch = Launch("decode", bench.streams.rows(range(1), 0))
        for phase, block in ((1, 0), (5, 3), (40, 0)):
            results.append({"case": f"stall in phase {phase}, block {block}"} | bench.stall(launch, phase, block))
            _say(json.dumps(results[-1]))
    failures = [result for result in results if not result["ok"] or result.get("wrong_codes")]
    return (failures if options.all else results), len(failures)


def _summarise(results: list[dict[str, Any]]) -> None:
    """Failures, and the largest error of each kind of phase in each buffer."""
    worst: dict[tuple[str, str], float] = {}
    for result in results:
        if not result["ok"]:
            _show(result)
        for item in result.get("differences", ()):
            key = (result["kind"], item.buffer)
            worst[key] = max(worst.get(key, 0.0), item.max_rel)
    _say(f"{len(results)} phases; largest error / rms of the buffer:")
    for (kind, buffer), error in sorted(worst.items()):
        _say(f"  {kind:20} {buffer:17} {error:.3e}")


def _show(result: dict[str, Any]) -> None:
    phase = f" | phase {result['phase']}: {result['name']}" if "phase" in result else ""
    _say(f"{'ok   ' if result['ok'] else 'WRONG'} {result['case']}{phase} {result.get('error', '')}")
    for wrong in result.get("wrong_codes", ()):
        _say(f"      code {wrong}")
    for item in result.get("differences", ()):
        _say(
            f"    {'!' if item.wrong else ' '} {item.buffer:17} wrong {item.wrong:8}  max abs {item.max_abs:.3e}  "
            f"max/rms {item.max_rel:.3e}  at {item.first}"
        )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=MODELS, default="0.6B", help="published or test sizes, random weights")
    parser.add_argument("--layers", type=int, default=0, help="cut both stacks to this many layers")
    parser.add_argument("--stop-after", type=int, default=0, help="compare after this phase of each launch")
    parser.add_argument("--all", action="store_true", help="compare after every phase of each launch")
    parser.add_argument("--time", action="store_true", help="measure instead of comparing")
    parser.add_argument("--frames", type=int, default=200, help="with --time: frames per measurement")
    parser.add_argument("--blocks", type=int, default=0, help="another grid than one block per multiprocessor")
    parser.add_argument("--stages", type=int, default=0, help="another depth of the ring in shared memory")
    parser.add_argument("--in-flight", type=int, default=1, help="copies into the ring requested at once")
    parser.add_argument("--stall-timeout", type=float, default=0.05, help="seconds a wait in the kernel may take")
    parser.add_argument("--json", type=Path, help="write the whole report to this file")
    options = parser.parse_args(arguments)
    file: Path | None = options.json
    if file is not None and (file.is_dir() or not file.parent.is_dir()):
        parser.error(f"--json is {str(file)!r}, expected a file in a folder that is there; name another, or make it")
    return options


if __name__ == "__main__":
    raise SystemExit(main())
