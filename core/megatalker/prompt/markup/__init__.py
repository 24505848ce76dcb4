"""Markup in spoken text: pauses, spoken forms, marks, voices and prosody, in SSML or in short tags.

A text in markup is read into parts (:mod:`~megatalker.prompt.markup.parts`) as it arrives, cut anywhere. What is
spoken of it becomes clean text; everything else stands in that text as a control
(:mod:`~megatalker.prompt.markup.controls`) until the segmenter reads it.
"""

from megatalker.prompt.markup.marked_text import MarkedText

__all__ = ["MarkedText"]
