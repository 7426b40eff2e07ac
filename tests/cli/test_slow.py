"""A person at a terminal is told what is waited for; a script is not."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest

from harvester.cli.slow import said_if_slow


class Screen:
    """A stderr that may be a terminal, and says when something was written."""

    def __init__(self, is_terminal: bool) -> None:
        self.text, self.written, self._is_terminal = "", threading.Event(), is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        self.text += text
        if text.endswith("\n"):
            self.written.set()
        return len(text)

    def flush(self) -> None: ...


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Screen:
    screen = Screen(request.param)
    monkeypatch.setattr("harvester.cli.slow.sys", SimpleNamespace(stderr=screen))  # pytest puts back its own between set-up and test
    return screen


@pytest.mark.parametrize("screen", [True], ids=["terminal"], indirect=True)
def test_a_wait_is_named_with_its_seconds(screen: Screen) -> None:
    with said_if_slow("Reading the source", first_s=0.001, every_s=60.0):
        assert screen.written.wait(10)
    assert screen.text == "Reading the source, 0 s\n"


@pytest.mark.parametrize("screen", [True], ids=["terminal"], indirect=True)
def test_a_short_wait_is_not_named(screen: Screen) -> None:
    with said_if_slow("Reading the source", first_s=60.0):
        pass
    assert screen.text == ""


@pytest.mark.parametrize("screen", [False], ids=["script"], indirect=True)
def test_a_script_is_told_nothing(screen: Screen) -> None:
    before = threading.active_count()
    with said_if_slow("Reading the source", first_s=0.0):
        assert threading.active_count() == before
    assert screen.text == ""
