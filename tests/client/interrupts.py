"""Ctrl-C at every place where Python can notice it: after each call that a piece of code makes."""

from __future__ import annotations

import dis
import sys
from collections.abc import Callable
from types import CodeType, FrameType, ModuleType
from typing import Any

# Where the interpreter looks for signals: at the start of a function, after a call, when it loops.
_CHECKS = {"RESUME", "CALL", "CALL_KW", "CALL_FUNCTION_EX", "JUMP_BACKWARD"}


def interrupted(at: int, work: Callable[[], object], *modules: ModuleType) -> bool:
    """Do ``work``, with a ``KeyboardInterrupt`` at the ``at``-th such place in ``modules``.

    False when there are not so many, and ``work`` was done to its end.
    """
    files = {module.__file__ for module in modules}
    left = at
    previous: dict[FrameType, int | None] = {}  # where each frame last looked for signals

    def trace(frame: FrameType, event: str, _argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        frame.f_trace_opcodes = True
        if event == "opcode":
            at_check = previous.get(frame)
            if at_check is not None and _same_handler(frame.f_code, at_check, frame.f_lasti):
                left -= 1
                if left == 0:
                    previous.clear()
                    sys.settrace(None)
                    raise KeyboardInterrupt
            checks = dis.opname[frame.f_code.co_code[frame.f_lasti]] in _CHECKS
            previous[frame] = frame.f_lasti if checks else None
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def _same_handler(code: CodeType, here: int, following: int) -> bool:
    """Whether an exception after the instruction ``here`` goes where one at ``following`` goes.

    The interpreter raises at the former, a trace function at the latter.
    """
    return _handler(code, here) == _handler(code, following)


def _handler(code: CodeType, offset: int) -> int | None:
    for entry in dis._parse_exception_table(code):  # type: ignore[attr-defined]
        if entry.start <= offset < entry.end:
            return int(entry.target)
    return None
