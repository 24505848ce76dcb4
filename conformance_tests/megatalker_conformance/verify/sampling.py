"""How codes are drawn, held to transformers' own logits processors by distribution, and to the official values."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from megatalker.checkpoint import Checkpoint
from megatalker.cli.verify.card import Check
from megatalker.errors import BackendUnavailableError, UnsupportedError
from megatalker.plugins import probe
from megatalker.plugins.checked import load_talker
from megatalker.sampling import CodeVocabulary, SamplingParams
from megatalker.testing.random_checkpoint import write_checkpoint
from megatalker.testing.recipe import TINY
from megatalker.testing.special import OpenModel
from megatalker_conformance.cases import SENTENCES
from megatalker_conformance.loading import load_context
from megatalker_conformance.streams import StreamCase, SuiteStreams, TeacherForced
from megatalker_conformance.verify.chances import BarredIds
from megatalker_conformance.verify.company import ENDLESS, PlannedStream, PlanRunner, PlayedStream, fitted
from megatalker_conformance.verify.draws import FALSE_ALARM, DrawTally, SaidStream
from megatalker_conformance.verify.forward import OfficialForward
from megatalker_conformance.verify.subject import NotRunError, VerifySubject

OFFICIAL_NAMES: Mapping[str, str] = {
    "do_sample": "do_sample",
    "temperature": "temperature",
    "top_k": "top_k",
    "top_p": "top_p",
    "repetition_penalty": "repetition_penalty",
    "min_new_tokens": "min_new_tokens",
    "subtalker_dosample": "predictor_do_sample",
    "subtalker_temperature": "predictor_temperature",
    "subtalker_top_k": "predictor_top_k",
    "subtalker_top_p": "predictor_top_p",
}
"""Arguments of the official ``generate``, and our names of them."""
_ALL = SamplingParams(
    temperature=1e6, top_k=None, repetition_penalty=1.0, predictor_temperature=1e6, predictor_top_k=None
)
KINDS: Mapping[str, SamplingParams] = {
    "all ids alike": _ALL,
    "the likeliest ids alike": replace(_ALL, temperature=1e3, top_k=10, predictor_temperature=1e3, predictor_top_k=50),
    "a nucleus": replace(_ALL, temperature=2.0, top_p=0.6, predictor_temperature=2.0, predictor_top_p=0.6),
    "a penalty": SamplingParams(temperature=1.5, top_k=None, repetition_penalty=2.0, predictor_temperature=0.5),
    "a reward": SamplingParams(temperature=3.0, top_k=20, repetition_penalty=0.7, predictor_temperature=2.0),
}
"""Sampling that tells each rule from its neighbours."""
SEEDS = (3, 2**40 + 17, 2**63 + 5)
"""Seeds of the streams of a kind: they differ in their low and in their high words."""


def sampling(subject: VerifySubject) -> Iterator[Check]:
    """The values and barred ids of the official call, and what is drawn from logits that are known."""
    subject.require_official()
    forward = subject.forward
    handed = forward.handed_over(SENTENCES[2], subject.modes[0])
    yield _values(subject.checkpoint, handed)
    barred = BarredIds(tuple(handed["suppress_tokens"]), handed["eos_token_id"])
    yield _barred(subject.checkpoint, barred)
    if not subject.talker_backend.capabilities.seeded_sampling:
        raise NotRunError(f"{subject.talker_backend.name} is greedy only")
    own = subject.exact_dtype is None
    with subject.streams(subject.dtype if own else torch.float32) as streams:
        if own and not streams.decoder.capabilities.forced_codes:
            raise NotRunError(f"{subject.talker_backend.name} computes in 16 bits and shows no logits")
        company = PlanRunner(streams, subject.order.reach.budget_s, with_logits=own)
        played = company.play(fitted(_plan(subject), streams.decoder))
    yield _tallied(subject, played, forward, barred, own)
    yield _known_logits(subject)


def _values(checkpoint: Checkpoint, handed: Mapping[str, Any]) -> Check:
    ours = checkpoint.sampling
    wrong = []
    for theirs, name in OFFICIAL_NAMES.items():
        value, expected = getattr(ours, name), handed[theirs]
        if value != (None if name.endswith("top_k") and expected == 0 else expected):
            wrong.append(f"{name} {value}, officially {expected}")
    found = "; ".join(wrong) or f"equal to those of the official call: all {len(OFFICIAL_NAMES)}"
    return Check("sampling", "default values", "failed" if wrong else "passed", found)


def _barred(checkpoint: Checkpoint, official: BarredIds) -> Check:
    vocabulary = CodeVocabulary.from_config(checkpoint.config)
    ours = set(range(vocabulary.first_suppressed_id, vocabulary.size)) - {vocabulary.eos_id}
    same = ours == set(official.suppressed) and vocabulary.eos_id == official.end
    found = f"equal to those of the official call: {len(official.suppressed)}, and the end of speech"
    if not same:
        strays = sorted(ours ^ set(official.suppressed))
        found = f"{len(strays)} ids differ: {strays[:8]}; end of speech {vocabulary.eos_id}, officially {official.end}"
    return Check("sampling", "ids that are never chosen", "passed" if same else "failed", found)


def _plan(subject: VerifySubject) -> list[PlannedStream]:
    frames = subject.order.reach.draw_frames
    text = SENTENCES[0]
    plan = []
    kinds = {**KINDS, "the checkpoint's own": subject.checkpoint.sampling}
    for kind, params in kinds.items():
        seeds = SEEDS if kind in ("all ids alike", "the likeliest ids alike") else SEEDS[:2]
        for seed in seeds:
            least = params.min_new_tokens if params is subject.checkpoint.sampling else ENDLESS
            case = subject.cases.prompt(text, "interleaved", replace(params, seed=seed, min_new_tokens=least))
            plan.append(PlannedStream(replace(case, name=kind), frames))
    return plan


def _tallied(
    subject: VerifySubject,
    played: list[PlayedStream],
    forward: OfficialForward,
    barred: BarredIds,
    own: bool,
) -> Check:
    tally = DrawTally()
    kinds: dict[str, SaidStream] = {}
    for each in played:
        case = each.plan.case
        logits = each.own_logits if own else forward.logits(case, each.codes)
        said = SaidStream(each.codes, each.ended, logits)
        tally.add(case.name, case.sampling, said, barred)
        if case.name in kinds and case.sampling.predictor_do_sample:
            tally.compare(case.name, case.sampling, said, kinds[case.name])
        kinds.setdefault(case.name, said)
    subject.reached("draws", tally.draws)
    whose = "its own logits" if own else "the official logits"
    return _judged_tally("draws of this checkpoint", tally, f"in {len(played)} streams, from {whose}")


def _judged_tally(name: str, tally: DrawTally, where: str) -> Check:
    """The check of a tally."""
    faults = tally.faults()
    found = f"{tally.draws} draws {where}: as transformers' processors have it in all {len(tally.events)} counts"
    if faults:
        found = f"{tally.draws} draws {where}: {'; '.join(faults[:3])}"
        found += f" ({len(faults)} of {len(tally.events)} counts differ)" if len(faults) > 3 else ""
    found += f"; a right sampler fails with a chance of {FALSE_ALARM:g}"
    figures = {"draws": float(tally.draws), "counts": float(len(tally.events)), "faults": float(len(faults))}
    return Check("sampling", name, "failed" if faults else "passed", found, figures)


# ------------------------------------------------------------------------------------- logits that are known beforehand

ENDS_AT = (0, 1, 2, 3, 5)
"""Least frames of the streams whose end is watched."""
LIVES = 4
"""Streams of each."""
_ENDS, _PENALTY = ("a likely end", "a sure end"), "a penalty"
_CHOSEN: Mapping[str, Mapping[int, float]] = {
    "a likely end": {OpenModel.END: 3.0, **{code: 3 - 0.1 * code for code in range(30)}},
    "a sure end": {OpenModel.END: 12.0, **dict.fromkeys(range(8), 1.0)},
    _PENALTY: {code: 4 - 0.2 * code for code in range(36)},
}
"""Logits of code 0 in all frames of a stream."""
_BARRED_LOGIT = 9.0
"""All ids that are barred would be chosen before most others."""


def _known_logits(subject: VerifySubject) -> Check:
    """Draws from logits that are chosen so that ends of speech, bars and penalties decide."""
    dtype = subject.exact_dtype or subject.dtype
    with TemporaryDirectory() as folder:
        checkpoint = Checkpoint.open(write_checkpoint(Path(folder), TINY, OpenModel.change))
        spec, device = subject.talker_backend, subject.device
        reason = probe(spec, checkpoint, device, subject.settings).reason
        try:
            if reason is not None:
                raise UnsupportedError(reason)
            decoder = load_talker(spec, checkpoint, load_context(spec, device, dtype, subject.settings))
        except (BackendUnavailableError, UnsupportedError) as error:
            return Check(
                "sampling", "draws from chosen logits", "not run", f"the backend cannot run its model: {error}"
            )
        try:
            model = OpenModel(lambda name: checkpoint.tensor(name).float().numpy())
            played = PlanRunner(SuiteStreams(decoder), subject.order.reach.budget_s).play(_open_plan(model))
        finally:
            decoder.close()
    tally, barred = DrawTally(), _official_bars(checkpoint)
    for each in played:
        tally.add(each.plan.case.name, each.plan.case.sampling, _open_stream(model, each), barred)
    subject.reached("draws", tally.draws)
    return _judged_tally("draws from chosen logits", tally, "of a model made for it")


def _official_bars(checkpoint: Checkpoint) -> BarredIds:
    """Return what the official ``generate`` bars: the last 1024 ids, the end of speech excepted."""
    size, end = checkpoint.config.talker.vocab_size, OpenModel.END
    return BarredIds(tuple(code for code in range(size - 1024, size) if code != end), end)


def _open_plan(model: OpenModel) -> list[PlannedStream]:
    plain = SamplingParams(temperature=1.0, repetition_penalty=1.0, predictor_temperature=2.0)
    plan = []
    for least in ENDS_AT:
        for life in range(LIVES):
            params = replace(plain, min_new_tokens=least, seed=SEEDS[life % 3] + life)
            plan += [PlannedStream(_open_case(model, kind, params), least + 4) for kind in _ENDS]
    penalty = replace(plain, repetition_penalty=1.6, min_new_tokens=0, temperature=1.2)
    plan += [PlannedStream(_open_case(model, _PENALTY, replace(penalty, seed=seed)), 60) for seed in SEEDS]
    return plan


def _open_case(model: OpenModel, kind: str, params: SamplingParams) -> StreamCase:
    """A stream whose code 0 always has the chosen logits, and whose barred ids would be chosen before most others."""
    row = torch.from_numpy(model.row(_CHOSEN[kind], special=_BARRED_LOGIT))
    return StreamCase(kind, torch.stack([row, row]), row.new_empty(0, len(row)), row, params)


def _open_stream(model: OpenModel, played: PlayedStream) -> SaidStream:
    """Return the draws of a stream, with its logits in closed form."""
    row, codes = played.plan.case.pad.numpy(), played.codes
    first = np.stack([model.talker_logits(row, said) for said in (None, *codes)])
    later = [model.predictor_logits(place, code) for said in codes for place, code in enumerate(said[:-1], start=1)]
    shape = len(codes), TINY.num_code_groups - 1, TINY.codebook_size
    predictor = torch.from_numpy(np.array(later, np.float32).reshape(shape))
    return SaidStream(codes, played.ended, TeacherForced(torch.from_numpy(first), predictor))
