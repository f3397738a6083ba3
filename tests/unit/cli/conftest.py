"""The command line without what the environment of the one who runs the tests says."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_variables_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("HEADRACE_", "DYN_"))]:
        monkeypatch.delenv(name)
