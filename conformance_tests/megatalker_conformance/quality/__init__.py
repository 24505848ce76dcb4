"""Quality as a paired trial: our speech and the official package's, judged by the same judges and compared."""
