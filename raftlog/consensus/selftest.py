"""Self-test: PySyncObj has the internals that ``raft_group`` requires.

``raft_group`` depends on internals, so the version is pinned. A patched copy may have the same
version, so the self-test also checks every private name that ``raft_group`` uses, the arguments of
every method that it overrides, and one election, commit and step-down of a group. No state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache
from types import CodeType, FunctionType
from typing import Any, Final

from pysyncobj import SyncObj
from pysyncobj import version as library_version
from pysyncobj.journal import MemoryJournal
from pysyncobj.transport import Transport

from raftlog.consensus import transport
from raftlog.consensus.raft_group import RaftGroup, Timing
from raftlog.consensus.settings import ConsensusSettings

VERSION: Final = "0.3.17"
PRIVATE: Final = "_SyncObj__"
US: Final = 1
PEER: Final = 2


@cache
def check() -> None:
    """Check the library, once per process. Raises ``RuntimeError`` with the differences."""
    _complain(list(_faults(SyncObj, RaftGroup, library_version.VERSION)))


def _complain(faults: list[str]) -> None:
    if faults:
        raise RuntimeError(
            f"raftlog requires PySyncObj {VERSION}, and the installed one is different "
            f"({'; '.join(faults)}). Install pysyncobj=={VERSION}"
        )


def _faults(library: type, group: type, version: str) -> Iterator[str]:
    # guard: the library has the expected version
    if version != VERSION:
        yield f"it is version {version}"
        return
    known = set(vars(library)) | set(names_in(library))
    for name in sorted(set(names_in(group)) - known):
        yield f"it has no {name.removeprefix(PRIVATE)}"
    for name, method in sorted(vars(group).items()):
        original = vars(library).get(name)
        if not (isinstance(method, FunctionType) and isinstance(original, FunctionType)):
            continue
        if name != "__init__" and not accepts(method.__code__, original.__code__):
            yield f"{name.removeprefix(PRIVATE)} takes other arguments"
    try:
        live(group)
    except Exception as error:  # noqa: BLE001 - the library may raise any error
        yield f"a group does not work: {error!r}"


def names_in(kind: type) -> Iterator[str]:
    """Yield the private names of the library that a class defines or that its methods use."""
    for name, method in vars(kind).items():
        if name.startswith(PRIVATE):
            yield name
        function = method.fget if isinstance(method, property) else method
        if isinstance(function, FunctionType):
            yield from (each for each in function.__code__.co_names if each.startswith(PRIVATE))


def accepts(override: CodeType, original: CodeType) -> bool:
    """Return whether a method can be called with the arguments of the one that it overrides."""
    return override.co_argcount == original.co_argcount


class _Recorder(Transport):  # type: ignore[misc]  # the library has no types
    """Records the messages that are sent."""

    def __init__(self) -> None:
        super().__init__(None, None, [])
        self.sent: list[tuple[Any, ...]] = []

    def send(self, node: Any, message: tuple[Any, ...]) -> bool:
        self.sent.append((node.id, *message))
        return True


def live(group_type: Callable[..., Any]) -> None:
    """Elect, commit, apply and depose one of two voters. Raises ``AssertionError``."""
    applied: list[bytes] = []
    recorder = _Recorder()
    group = group_type(
        US,
        {US: "", PEER: ""},
        journal=MemoryJournal(),
        transport=recorder,
        timing=Timing(ConsensusSettings()),
        chance=lambda: 0.5,
        apply=applied.append,
        now=1.0,
    )
    group.peer_up(PEER, 1.0)
    _expect(group.due() < 2.0, "an election is due")
    group.step(2.0)
    _expect(
        recorder.sent.pop() == (PEER, 0, transport.PRE_VOTE, 1, 0, 1), "a pre-vote is requested"
    )
    group.receive(PEER, 0, transport.PRE_VOTE_ANSWER, [1, True], 2.0)
    _expect(recorder.sent.pop() == (PEER, 1, transport.VOTE, 0, 1), "a vote is requested")
    group.receive(PEER, 1, transport.VOTE_ANSWER, [True], 2.0)
    _expect(group.is_leader and group.leader == US, "a majority elects")
    index = group.append(bytes([transport.COMMAND]) + b"set", 2.0)
    group.step(2.0)
    _expect(group.commit_index == 1, "one of two voters is not a majority")
    group.receive(PEER, 1, transport.APPEND_ANSWER, [True, 1, index], 2.0)
    group.step(2.0)
    _expect(group.commit_index == group.applied_index == index, "a majority commits")
    _expect(applied == [b"set"], "a committed command is applied")
    group.step(60.0)
    _expect(not group.is_leader and group.leader is None, "a leader without responses steps down")


def _expect(holds: bool, what: str) -> None:
    if not holds:
        raise AssertionError(what)
