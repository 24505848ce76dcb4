"""``megatalker say``: text in; a file, a pipe or sound out, while it is spoken."""
