"""An utterance as its caller has it: what is asked for, its text in segments, and the audio that comes of it.

No engine is needed to read these: an engine of this process, one in another, and a client of a server share them.
"""
