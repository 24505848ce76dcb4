"""The text that an engine handed its backend."""

import unicodedata

import pytest

from megatalker.engine.speech.text_segmenter import TextSegment, TextSegmenter


class SpokenText:
    """The segments that engines of this process begin, while it is installed; their text may still grow."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.segments: list[TextSegment] = []
        begin = TextSegmenter.begin

        def recorded(segmenter: TextSegmenter) -> None:
            self.segments.append(segmenter.upcoming)
            begin(segmenter)

        monkeypatch.setattr(TextSegmenter, "begin", recorded)

    def take(self) -> list[str]:
        """Their texts, stripped; the next call has what comes after."""
        taken, self.segments = self.segments, []
        return [segment.text.strip() for segment in taken]


def letters(text: str) -> str:
    """Letters and digits, composed."""
    return "".join(filter(str.isalnum, unicodedata.normalize("NFC", text)))
