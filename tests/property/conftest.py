"""How properties are tried: no deadline (the machine may be busy), and the same examples on every run."""

from hypothesis import settings

settings.register_profile("headrace", deadline=None, derandomize=True)
settings.load_profile("headrace")
