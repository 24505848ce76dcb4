"""The ``streaming`` codec: an exact incremental decoder of the 12 Hz speech tokenizer, batched over streams."""
