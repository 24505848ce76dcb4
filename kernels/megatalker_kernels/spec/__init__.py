"""The executable specification of the kernel in plain torch and numpy. Each file is named as its twin in ``csrc``."""
