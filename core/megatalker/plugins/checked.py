"""Temporary: the shell around loaded backends."""

from megatalker.engine_checks import check_frames, check_handle
from megatalker.errors import MegatalkerError
from megatalker.interfaces import *


class MalformedResultError(MegatalkerError, RuntimeError): ...


class CheckedTalker:
    def __init__(self, inner, config):
        self.inner, self.config = inner, config
        self.capabilities = inner.capabilities
        self.live = set()

    @property
    def max_streams(self):
        return self.capabilities.max_streams

    @property
    def max_positions(self):
        return self.capabilities.max_positions or self.config.talker.max_positions

    def prefill(self, requests):
        out = []
        try:
            for r in requests:
                h = self.inner.prefill(r)
                c = check_handle(h, self.live)
                if c:
                    raise MalformedResultError(c)
                self.live.add(h)
                out.append(h)
        except BaseException:
            for h in out:
                self.release(h)
            raise
        return out

    def decode(self, steps, *, return_logits=False):
        f = self.inner.begin(steps)

        def fin():
            frames = f()
            c = check_frames(frames, steps, self.config)
            if c:
                raise MalformedResultError(c)
            return frames

        return fin

    def release(self, h):
        self.inner.release(h)
        self.live.discard(h)

    def warmup(self):
        self.inner.warmup()

    def close(self):
        self.inner.close()


class CheckedCodec:
    def __init__(self, inner):
        self.inner = inner
        self.capabilities = inner.capabilities

    @property
    def max_streams(self):
        return self.capabilities.max_streams

    def open(self):
        return self.inner.open()

    def decode(self, s, c):
        from megatalker.engine_checks import check_chunks

        out = self.inner.decode(s, c)
        e = check_chunks(out, c)
        if e:
            raise MalformedResultError(e)
        return out

    def encode(self, a):
        return self.inner.encode(a)

    def warmup(self):
        self.inner.warmup()

    def close(self):
        self.inner.close()


def load_talker(spec, checkpoint, context):
    return CheckedTalker(spec.load(checkpoint, context), checkpoint.config)


def load_codec(spec, checkpoint, context):
    return CheckedCodec(spec.load(checkpoint, context))
