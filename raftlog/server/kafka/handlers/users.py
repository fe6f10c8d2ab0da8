"""DescribeUserScramCredentials and AlterUserScramCredentials: users of the cluster (KIP-554)."""

from __future__ import annotations

from collections import Counter
from typing import Final

from raftlog import limits
from raftlog.errors import InvalidRequestError, RaftlogError
from raftlog.kafka import api, codec, errors
from raftlog.kafka.codec import Message
from raftlog.kafka.connection import KafkaRequest
from raftlog.kafka.errors import Place, code_of
from raftlog.security.users import (
    SCRAM_MECHANISMS,
    Mechanism,
    of_salted_password,
)
from raftlog.server.context import BrokerContext
from raftlog.server.kafka.reply import KafkaReply
from raftlog.server.requests import users as requests
from raftlog.server.turns import Steps

DESCRIBED_PER_STEP: Final = 500  # users per step
# Kafka's numbers of the mechanisms.
NUMBERS: Final[dict[Mechanism, int]] = {"SCRAM-SHA-256": 1, "SCRAM-SHA-512": 2}
_NAMES: Final = {number: mechanism for mechanism, number in NUMBERS.items()}

_Describe = codec.structs("response", api.DESCRIBE_USER_SCRAM_CREDENTIALS.key)
_Alter = codec.structs("response", api.ALTER_USER_SCRAM_CREDENTIALS.key)


def handle_describe_users(
    context: BrokerContext, request: KafkaRequest, reply: KafkaReply
) -> Steps:
    """Return the mechanisms and iterations of users; of all if the request names none."""
    requests.check_allowed(context, reply.connection, reply.name)
    names = [each.name for each in request.message.users or ()] or None
    if names is not None:
        _check_user_count(len(names))
    results = []
    for number, user in enumerate(requests.find(context, names)):
        if number % DESCRIBED_PER_STEP == 0:
            yield None
        infos = [
            _Describe.CredentialInfo(mechanism=NUMBERS[mechanism], iterations=each.iterations)
            for mechanism, each in user.credentials.items()
        ]
        results.append(_description(user.name, infos))
    missing = set(names or ()) - {result.user for result in results}
    results += [_missing(name) for name in sorted(missing)]
    reply.send(_Describe.root(error_message=None, results=results))


def refuse_describe_users(request: KafkaRequest, error: RaftlogError) -> Message:
    """Return the error for each named user, or for the request if it is for all users.

    librdkafka ends its process with SIGSEGV if a request as a whole fails.
    """
    code = code_of(error, Place.ADMIN)
    if not request.message.users:
        return _Describe.root(error_code=code, error_message=error.wire_text, results=[])
    results = [_failed(each.name, code, error.wire_text) for each in request.message.users]
    return _Describe.root(error_message=None, results=results)


def _description(name: str, infos: list[Message]) -> Message:
    return _Describe.DescribeUserScramCredentialsResult(
        user=name, error_message=None, credential_infos=infos
    )


def _missing(name: str) -> Message:
    return _failed(name, errors.RESOURCE_NOT_FOUND, f"there is no user {name!r}")


def _failed(name: str, code: int, text: str) -> Message:
    result = _description(name, [])
    result.error_code, result.error_message = code, text
    return result


def handle_alter_users(context: BrokerContext, request: KafkaRequest, reply: KafkaReply) -> None:
    """Change users, one after the other. Each has a separate result."""
    requests.check_allowed(context, reply.connection, reply.name)
    message = request.message
    changes = [*message.deletions, *message.upsertions]
    _check_user_count(len(changes))
    # As in Kafka, a request may contain one change of each credential.
    count = Counter((change.name, change.mechanism) for change in changes)

    async def alter_all() -> Message:
        failures: dict[str, tuple[int, str | None]] = {}
        for change in changes:
            failed = failures.get(change.name, (errors.NONE, None))
            if failed[0] == errors.NONE:
                if count[change.name, change.mechanism] > 1:
                    failed = errors.DUPLICATE_RESOURCE, "the credential is in the request twice"
                else:
                    failed = await _alter(context, change)
            failures[change.name] = failed
        return _Alter.root(results=[_user_result(name, *found) for name, found in failures.items()])

    context.administration.submit(alter_all, reply)


async def _alter(context: BrokerContext, change: Message) -> tuple[int, str | None]:
    """Make one change. Return its error code and message."""
    mechanism = _NAMES.get(change.mechanism)
    if mechanism is None:
        return (
            errors.UNSUPPORTED_SASL_MECHANISM,
            f"mechanism {change.mechanism} is unknown. Use {', '.join(SCRAM_MECHANISMS)}",
        )
    try:
        if hasattr(change, "salted_password"):
            try:
                credential = of_salted_password(
                    mechanism,
                    bytes(change.salted_password),
                    salt=bytes(change.salt),
                    iterations=change.iterations,
                )
            except InvalidRequestError as error:
                return errors.UNACCEPTABLE_CREDENTIAL, error.wire_text
            await requests.put(context, change.name, {mechanism: credential}, expected="any")
        else:
            await requests.delete(context, change.name, [mechanism])
    except RaftlogError as error:
        return code_of(error, Place.ADMIN), error.wire_text
    return errors.NONE, None


def refuse_alter_users(request: KafkaRequest, error: RaftlogError) -> Message:
    message = request.message
    names = dict.fromkeys(each.name for each in (*message.deletions, *message.upsertions))
    code = code_of(error, Place.ADMIN)
    return _Alter.root(results=[_user_result(name, code, error.wire_text) for name in names])


def _user_result(name: str, code: int, text: str | None) -> Message:
    return _Alter.AlterUserScramCredentialsResult(user=name, error_code=code, error_message=text)


def _check_user_count(count: int) -> None:
    if count > limits.USERS_PER_REQUEST_MAX:
        raise InvalidRequestError(
            f"the request has {count} users, over the limit of {limits.USERS_PER_REQUEST_MAX}"
        )
