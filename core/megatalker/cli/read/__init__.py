"""``megatalker read`` and ``megatalker batch``: long texts to files, many streams at once, resumable."""
