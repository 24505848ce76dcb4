"""The encoder of the speech tokenizer, samples to codes: equal to the official one in long and short recordings."""
