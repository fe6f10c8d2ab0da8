"""The environment of a client: how it connects, its thread, its clock and its random numbers.

The default is the real one. The embedded log and the tests pass others.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, field

from raftlog.client.connection import Connector
from raftlog.client.loop_thread import LoopThread
from raftlog.client.retry import Chance
from raftlog.clock import Clock, SystemClock


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientEnvironment:
    """Environment of a client. The defaults are the real network, clock and random numbers.

    ``connector``: None opens TCP connections. ``loop_thread``: shared by synchronous clients; None
    creates one per client, which ends with it. Asynchronous clients run on the caller's loop.
    ``entropy``: returns the given number of unpredictable random bytes.
    """

    connector: Connector | None = None
    loop_thread: LoopThread | None = None
    clock: Clock = field(default_factory=SystemClock)
    chance: Chance = field(default_factory=lambda: random.Random().random)  # noqa: S311 - jitter
    entropy: Callable[[int], bytes] = os.urandom
