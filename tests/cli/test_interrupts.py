"""How a command is told to end."""

from __future__ import annotations

import signal
from collections.abc import Iterator

import pytest

from raftlog_cli.main import STOP_SIGNALS, HeldInterrupt, Terminated, raise_on_signals, status_of


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """What was there before stays."""
    before = {number: signal.getsignal(number) for number in STOP_SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_it_is_an_interrupt_with_a_status_of_its_own(number: int, status: int) -> None:
    signal.signal(number, signal.SIG_DFL)
    raise_on_signals()
    with pytest.raises(Terminated) as noted:
        signal.raise_signal(number)
    assert isinstance(noted.value, KeyboardInterrupt)
    assert status_of(noted.value) == status


def test_ctrl_c_has_its_own_status() -> None:
    assert status_of(KeyboardInterrupt()) == 130


def test_what_is_ignored_stays_ignored() -> None:
    """As under nohup."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    raise_on_signals()
    signal.raise_signal(signal.SIGHUP)
    with HeldInterrupt() as held:
        signal.raise_signal(signal.SIGHUP)
        assert held.has_come is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_is_held_back_once(number: int) -> None:
    raise_on_signals()
    before = signal.getsignal(number)
    with HeldInterrupt() as held:
        assert held.has_come is None
        signal.raise_signal(number)
        assert held.has_come is not None
        assert status_of(held.has_come) == 128 + number
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(number)
    assert signal.getsignal(number) is before
