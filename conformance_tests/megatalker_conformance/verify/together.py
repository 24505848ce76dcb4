"""Several streams at once, long prompts and far positions: what each says is what it says alone, and officially."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from megatalker.cli.verify.card import Check
from megatalker.plugins.device import dtype_name
from megatalker.sampling import SamplingParams
from megatalker_conformance.cases import SENTENCES, Layout
from megatalker_conformance.precision import first_divergence, sixteen_bit_bounds
from megatalker_conformance.streams import GREEDY, StreamCase, SuiteStreams, TeacherForced
from megatalker_conformance.verify.company import (
    LIVELY,
    UNENDING_GREEDY,
    PlannedStream,
    PlanRunner,
    PlayedStream,
    fitted,
    up_to,
)
from megatalker_conformance.verify.contract import ContractJudge
from megatalker_conformance.verify.forward import OfficialForward
from megatalker_conformance.verify.subject import NotRunError, VerifySubject
from megatalker_conformance.verify.utterances import utterances

LONG_TEXT = " ".join((SENTENCES[4], SENTENCES[0], SENTENCES[1], SENTENCES[4]))
SAMPLED_AGAIN = 4
"""Streams that go on after what the longest stream said, from as many places."""
ALONE_FRAMES = 24
"""Frames of each stream that are said once more without company."""
FORCED_FRAMES = 48
"""Frames of each stream whose logits are compared in 16 bits."""


def streams(subject: VerifySubject) -> Iterator[Check]:
    """Streams that join and leave, held to one official forward over what they said, and to what each says alone."""
    subject.require_official()
    if subject.exact_dtype is not None:
        with subject.streams(subject.exact_dtype) as held:
            yield from _exact(subject, held)
        yield utterances(subject)
    if subject.dtype != torch.float32 or subject.exact_dtype is None:
        yield _sixteen_bit(subject)


def _exact(subject: VerifySubject, held: SuiteStreams) -> Iterator[Check]:
    budget_s, with_logits = subject.order.reach.budget_s, held.decoder.capabilities.forced_codes
    plan = fitted(_plan(subject), held.decoder)
    if not plan:
        raise NotRunError(f"{subject.talker_backend.name} has too few positions for any of the streams")
    company = PlanRunner(held, budget_s, with_logits)
    played = company.play(plan)
    _note_reach(subject, company, played)
    yield _compared(subject, "streams in company", played)
    again = fitted(list(_continuations(subject, played[0])), held.decoder)
    yield _compared(subject, "streams that go on far from the start", PlanRunner(held, budget_s).play(again))
    short = [replace(each, joins=0, frames=min(each.frames, ALONE_FRAMES)) for each in plan]
    yield _alone(subject, played, PlanRunner(held, budget_s, room=1).play(short))


def _plan(subject: VerifySubject) -> list[PlannedStream]:
    """Different texts, lengths, voices, layouts, sampling and seeds; the first stream is the longest by far."""
    reach, prompt = subject.order.reach, subject.cases.prompt
    spoken = [mode for mode in subject.modes if mode.spoken]
    voices = [(mode.voice, mode.language, mode.instruct) for mode in spoken]
    greedy, seeded = UNENDING_GREEDY, subject.talker_backend.capabilities.seeded_sampling
    lively, own = (LIVELY, subject.checkpoint.sampling) if seeded else (greedy, GREEDY)

    def say(number: int, text: str, layout: Layout, sampling: SamplingParams) -> StreamCase:
        voice, language, instruct = voices[number % len(voices)]
        manner = replace(sampling, seed=sampling.seed + number * 2**33)
        return prompt(text, layout, manner, voice=voice, language=language, instruct=instruct)

    twin = say(3, SENTENCES[1], "interleaved", lively)
    plan = [
        PlannedStream(say(0, LONG_TEXT, "interleaved", lively), reach.long_frames),
        PlannedStream(say(1, SENTENCES[2], "interleaved", lively), 40),
        PlannedStream(say(2, SENTENCES[0], "upfront", greedy), 60),
        PlannedStream(twin, 60, joins=3),
        PlannedStream(subject.cases.with_text_changed_at(twin, 5), 60, joins=3),
        PlannedStream(say(5, SENTENCES[4], "upfront", lively), 90, joins=10),
        PlannedStream(say(6, SENTENCES[1], "upfront", own), 120, joins=12),
        PlannedStream(say(7, SENTENCES[3], "interleaved", own), 40, joins=12),
        PlannedStream(say(8, LONG_TEXT, "upfront", lively), 50, joins=50),
        PlannedStream(say(9, SENTENCES[0], "interleaved", lively), 40, joins=150),
    ]
    for number, rows in enumerate(reach.long_prompts):
        case = subject.cases.rows(rows, replace(lively, seed=rows))
        plan.append(PlannedStream(case, 24, joins=60 + 30 * number))
    return [replace(each, joins=min(each.joins, reach.long_frames)) for each in plan]


def _continuations(subject: VerifySubject, longest: PlayedStream) -> Iterator[PlannedStream]:
    """Streams that continue the longest one from several places."""
    said = longest.codes
    for number in range(1, SAMPLED_AGAIN + 1):
        emitted = said[: len(said) * number // SAMPLED_AGAIN - number]
        if emitted:
            rows = subject.cases.emitted_rows(longest.plan.case, emitted)
            yield PlannedStream(longest.plan.case, 12, emitted=tuple(emitted), rows=rows)


def _note_reach(subject: VerifySubject, company: PlanRunner, played: Sequence[PlayedStream]) -> None:
    lengths = [len(each.plan.case.embeds) for each in played]
    subject.reached("streams at once", company.most_at_once)
    subject.reached("rows of a prompt", max(lengths))
    subject.reached("frames of a stream", max(len(each.codes) for each in played))
    rows = [length + len(each.codes) for length, each in zip(lengths, played, strict=True)]
    subject.reached("positions", max(rows))


def _compared(subject: VerifySubject, name: str, played: Sequence[PlayedStream]) -> Check:
    """Each code is what the sampling contract makes of the official logits, at the place where it was drawn."""
    judge = ContractJudge(subject.checkpoint.config, subject.forward)
    wrong, ties, frames = [], 0, 0
    for each in played:
        fault, near = judge.fault(each)
        ties, frames = ties + near, frames + len(each.codes) - len(each.plan.emitted)
        if fault is not None:
            wrong.append(f"{each.plan.case.name}: {fault}")
    found = f"{len(played)} streams, {frames} frames: all codes follow from the official logits"
    found += f", {ties} of them at near-ties" if ties else ""
    if wrong:
        found = f"{len(wrong)} of {len(played)} streams are wrong; {'; '.join(wrong[:3])}"
    figures = {"streams": float(len(played)), "frames": float(frames), "wrong": float(len(wrong))}
    return Check("streams", name, "failed" if wrong else "passed", found, figures)


def _alone(subject: VerifySubject, played: Sequence[PlayedStream], alone: Sequence[PlayedStream]) -> Check:
    """The same codes without company; where they part, at a near-tie."""
    judge = ContractJudge(subject.checkpoint.config, subject.forward)
    wrong, parted, frames = [], 0, 0
    for one, other in zip(played, alone, strict=True):
        length = len(other.codes) + other.ended
        frames += len(other.codes)
        divergence = first_divergence(one.codes[:length], other.codes)
        if divergence is None:
            continue
        parted += 1
        if any(judge.fault(up_to(each, divergence.frame))[0] is not None for each in (one, other)):
            wrong.append(f"{one.plan.case.name} parts at {divergence}")
    found = f"equal: {frames} frames of {len(played)} streams"
    found += f"; {parted} streams part at near-ties" if parted else ""
    if wrong:
        found = f"{len(wrong)} of {len(played)} streams say something else alone: {'; '.join(wrong[:3])}"
    return Check("streams", "in company as alone", "failed" if wrong else "passed", found, {"wrong": float(len(wrong))})


# -------------------------------------------------------------------------------------------------------------- 16 bits


def _sixteen_bit(subject: VerifySubject) -> Check:
    """Logits of streams in company along given codes, held to the 16-bit rule."""
    dtype = subject.dtype if subject.exact_dtype is not None else next(iter(subject.talker_backend.capabilities.dtypes))
    with subject.streams(dtype) as held:
        if not held.decoder.capabilities.forced_codes:
            raise NotRunError(f"{subject.talker_backend.name} takes no forced codes: no logits to compare in 16 bits")
        config = subject.checkpoint.config
        plan = fitted([replace(each, frames=min(each.frames, FORCED_FRAMES)) for each in _plan(subject)], held.decoder)
        draw = torch.Generator().manual_seed(7)
        for place, planned in enumerate(plan):
            shape = planned.frames, config.num_code_groups
            codes = torch.randint(config.predictor.vocab_size, shape, generator=draw)
            codes[:, 0] %= config.first_suppressed_id
            plan[place] = replace(planned, forced=tuple(map(tuple, codes.tolist())))
        company = PlanRunner(held, subject.order.reach.budget_s, with_logits=True)
        played = company.play(plan)
    subject.reached("streams at once", company.most_at_once)
    rounded = OfficialForward(subject.checkpoint, subject.device, dtype)
    worst, wrong = 0.0, []
    for each in played:
        exact, official = (_cut(forward.logits(each.plan.case, each.codes)) for forward in (subject.forward, rounded))
        for bound in sixteen_bit_bounds(each.own_logits, official, exact):
            worst = max(worst, bound.value / bound.limit if bound.limit else 0.0)
            if not bound.held:
                wrong.append(f"{each.plan.case.name}, {bound.name}: {bound.value:.3g} (at most {bound.limit:.3g})")
    found = f"{len(played)} streams: errors of logits are at most {worst:.2f} of what the 16-bit rule allows"
    if wrong:
        found = f"{len(wrong)} bounds of {len(played)} streams are exceeded; {'; '.join(wrong[:3])}"
    return Check("streams", f"logits in company, {dtype_name(dtype)}", "failed" if wrong else "passed", found)


def _cut(logits: TeacherForced) -> TeacherForced:
    return TeacherForced(logits.talker[: len(logits.predictor)], logits.predictor)
