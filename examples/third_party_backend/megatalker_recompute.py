"""A talker backend without a cache: each frame runs all rows of its stream through the official talker again."""

import torch

import megatalker as mt
from megatalker.checkpoint.official import load_official_model
from megatalker.sampling import CodeVocabulary, SamplerRows


class Recompute(mt.TalkerDecoder):
    """The state of a stream is nothing but its rows ``[positions, hidden_size]``, and a row of the sampler."""

    capabilities = mt.TalkerCapabilities(frozenset({"cpu", "cuda"}), frozenset({torch.float32}), 4, 1024)

    def __init__(self, checkpoint: mt.Checkpoint, context: mt.LoadContext) -> None:
        self._eos_id, self._device = checkpoint.config.codec_eos_id, context.device
        self._talker = load_official_model(checkpoint, context.device, context.dtype).model.talker
        self._sampler = SamplerRows(4, CodeVocabulary.from_config(checkpoint.config), context.device)
        self._table = mt.StreamTable[torch.Tensor](4)

    def prefill(self, requests):
        with self._table.admit(requests) as streams:
            for stream, request in zip(streams, requests, strict=True):
                self._sampler.assign(stream.row, request.sampling, request.history)
                stream.state = request.embeds.to(self._device, torch.float32, copy=True)
        return [stream.handle for stream in streams]

    def decode(self, steps, *, return_logits=False):
        return [self._frame(step, self._table[step.stream]) for step in steps]

    def release(self, stream):
        self._table.release(stream)

    @torch.inference_mode()
    def _frame(self, step, stream):
        talker, predictor = self._talker, self._talker.code_predictor
        sampler_row = torch.tensor([stream.row], device=self._device)
        hidden = talker.model(inputs_embeds=stream.state[None], use_cache=False).last_hidden_state[:, -1:]
        codes = [self._sampler.choose_first(sampler_row, talker.codec_head(hidden)[:, -1].float())]
        if int(codes[0]) == self._eos_id:
            return mt.Frame(step.stream, None)
        spoken = [talker.get_input_embeddings()(codes[0][None])]
        for codebook, embed in enumerate(predictor.get_input_embeddings(), start=1):
            logits = predictor(inputs_embeds=torch.cat([hidden, *spoken], dim=1), use_cache=False).logits[:, -1]
            codes.append(self._sampler.choose_rest(sampler_row, logits.float(), codebook))
            spoken.append(embed(codes[-1][None]))
        self._sampler.advance(sampler_row, codes[0])
        row = torch.cat(spoken, dim=1).sum(1) + step.text.to(self._device, torch.float32)
        stream.state = torch.cat([stream.state, row])
        return mt.Frame(step.stream, tuple(torch.cat(codes).tolist()))


@mt.hookimpl
def megatalker_backends():
    backend = mt.TalkerBackend(
        name="recompute", summary="no cache at all", api_version=2, capabilities=Recompute.capabilities, load=Recompute
    )
    return [backend]
