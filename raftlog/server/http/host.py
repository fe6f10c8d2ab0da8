"""The HTTP port of a host with several workers: the first worker's port answers for all of them.

The first worker asks the others at each request, and those that do not answer are not ready. No
request is forwarded with a password: if brokers require authentication, the metrics of the other
workers are included only if metrics are public, while health needs no user.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import Final, NamedTuple, TypeAlias

from raftlog import limits
from raftlog.config import Address
from raftlog.server.http.collect import Readiness

ASK_TIMEOUT_S: Final = 3.0  # a worker whose loop is held for longer is not healthy
_ANYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what such a worker is reached at


class Answer(NamedTuple):
    """Of a worker to a GET request. ``status``: 0 if there was none; the reason is ``text``."""

    status: int
    text: str


Ask: TypeAlias = Callable[[Address, str, str], Answer]


def ask_http(address: Address, path: str, accept: str, *, uses_tls: bool = False) -> Answer:
    """Send a request to a worker of this host, and wait for its answer."""
    host = _ANYWHERE.get(address.host, address.host)
    at = Address(host, address.port)
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({})]
    if uses_tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        # The certificate has the name of the host, and not this address. Nothing secret is sent.
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        handlers.append(urllib.request.HTTPSHandler(context=context))
    opener = urllib.request.build_opener(*handlers)
    url = f"{'https' if uses_tls else 'http'}://{at}{path}"
    request = urllib.request.Request(url, headers={"accept": accept})  # noqa: S310 - built above
    try:
        with opener.open(request, timeout=ASK_TIMEOUT_S) as response:
            return Answer(
                response.status, response.read(limits.HTTP_WORKER_ANSWER_BYTES_MAX).decode()
            )
    except urllib.error.HTTPError as error:
        return Answer(
            error.code, error.read(limits.HTTP_WORKER_ANSWER_BYTES_MAX).decode(errors="replace")
        )
    except (OSError, ValueError) as error:
        return Answer(0, f"its HTTP port does not answer: {error}")


class Host:
    """The other workers, as the first one sees them. Worker numbers begin at 2."""

    def __init__(self, others: Sequence[Address], ask: Ask) -> None:
        self._others = others
        self._ask = ask

    async def _asked(self, path: str, accept: str) -> dict[int, Answer]:
        answers = await asyncio.gather(
            *(asyncio.to_thread(self._ask, other, path, accept) for other in self._others)
        )
        return dict(enumerate(answers, start=2))

    async def ailing(self) -> list[str]:
        """Return a sentence for each worker that is not healthy."""
        answers = await self._asked("/healthz", "text/plain")
        return [f"worker {n}: {each.text.strip()}" for n, each in answers.items() if _fails(each)]

    async def readiness(self, own: Readiness) -> Readiness:
        """Return whether all workers are ready, and whether all can be restarted safely."""
        not_ready, not_safe = list(own.not_ready), list(own.not_safe)
        for number, answer in (await self._asked("/readyz", "application/json")).items():
            try:
                found = json.loads(answer.text)
                reasons, unsafe = found["not_ready"], found["not_safe"]
            except (ValueError, KeyError, TypeError):
                reasons, unsafe = [answer.text.strip()], []
            not_ready += [f"worker {number}: {reason}" for reason in reasons]
            not_safe += [f"worker {number}: {reason}" for reason in unsafe]
        return Readiness(tuple(not_ready), tuple(not_safe))

    async def metrics(self, own: str) -> str:
        """Return the metrics of all workers, in Prometheus' text format 0.0.4."""
        answers = await self._asked("/metrics", "text/plain")
        texts = {1: own} | {n: each.text for n, each in answers.items() if not _fails(each)}
        up = "# HELP raftlog_worker_up Whether the worker answers (1) or not (0).\n"
        up += "# TYPE raftlog_worker_up gauge\n"
        for number in (1, *answers):
            up += f'raftlog_worker_up{{worker="{number}"}} {int(number in texts)}\n'
        return await asyncio.to_thread(merge_metrics, texts) + up


def _fails(answer: Answer) -> bool:
    return answer.status != 200


def merge_metrics(texts: Mapping[int, str]) -> str:
    """Return the metrics of several workers as one text: each family once, as the format requires,
    and each sample with the label ``worker``.
    """
    heads: dict[str, dict[str, None]] = {}  # HELP and TYPE of each family, in order, each once
    samples: dict[str, list[str]] = {}
    for worker, text in texts.items():
        family = ""
        for line in text.splitlines():
            if line.startswith(("# HELP ", "# TYPE ")):
                family = line.split(" ", 3)[2]
                heads.setdefault(family, {})[line] = None
            elif line and not line.startswith("#"):
                samples.setdefault(family, []).append(_labelled(line, worker))
    return "".join(
        "".join(f"{line}\n" for line in (*heads.get(family, ()), *samples.get(family, ())))
        for family in dict.fromkeys((*heads, *samples))
    )


def _labelled(line: str, worker: int) -> str:
    name, space, value = line.partition(" ")
    bare, brace, labels = line.partition("{")
    if brace and len(bare) < len(name):
        return f'{bare}{{worker="{worker}",{labels}'
    return f'{name}{{worker="{worker}"}}{space}{value}'
