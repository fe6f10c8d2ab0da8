"""Changes of several topics in one request."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple, cast

from raftlog.errors import InvalidTopicError
from raftlog.server.apis.topics import Changed, change_each


class Named(NamedTuple):
    name: str
    id: str


def test_changes_of_one_request_share_their_waits_where_the_authority_can() -> None:
    """In a cluster: 1,000 topics are not 1,000 round trips, one after the other."""

    async def test() -> list[Changed]:
        loop = asyncio.get_running_loop()
        going_on: list[asyncio.Future[None]] = []

        async def change(name: str) -> Named:
            going_on.append(loop.create_future())
            await going_on[-1]
            if name == "2":
                raise InvalidTopicError("no")
            return Named(name, name)

        class Authority:
            changes_at_once = 3

        class Paper:
            authority = Authority()

        names = [str(number) for number in range(7)]
        changing = asyncio.ensure_future(change_each(cast(Any, Paper), names, change))
        for ended in range(7):
            for _ in range(5):
                await asyncio.sleep(0)
            assert len(going_on) == min(7, 3 + ended)
            going_on[ended].set_result(None)
        return await changing

    changed = asyncio.run(test())
    assert isinstance(changed[2], InvalidTopicError), "and only this one"
    assert [each.name for each in changed if isinstance(each, Named)] == list("013456")
