"""Synchronous admin client: each call runs the ``AsyncAdmin`` method on an I/O thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from raftlog.client.aio.admin import AdminBase, AsyncAdmin
from raftlog.client.threaded import PlainClient
from raftlog.errors import ClosedError

P = ParamSpec("P")
T = TypeVar("T")


def _waiting(
    method: Callable[Concatenate[AsyncAdmin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Admin, P], T]:
    """Wrap an ``AsyncAdmin`` method as a blocking one, with its arguments and documentation."""

    @wraps(method)
    def call(self: Admin, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(lambda: method(self._admin, *args, **kwargs))

    call.__qualname__ = f"Admin.{method.__name__}"
    return call


class Admin(AdminBase, PlainClient):
    """Client that creates, changes and describes topics and consumer groups, and looks up offsets.

    A context manager. Threads can share it. A call that names several topics processes all of them,
    and then raises the first error, which names its topic. If the response is lost, the request may
    have been carried out: the call raises an ``OutcomeUnknownError`` unless the request is
    idempotent.
    """

    def _setup(self) -> None:
        self._take_thread(self._host, "raftlog-admin")
        settings = self._settings
        self._admin = AsyncAdmin(
            [str(address) for address in settings.bootstrap],
            request_timeout_ms=settings.request_timeout_ms,
            client_id=settings.client_id,
            bootstrap_timeout_ms=settings.bootstrap_timeout_ms,
            cluster_secret=self._settings.operator_secret.decode(),
            **self._security,
            host=self._host,
        )
        self._closed = False

    create_topics = _waiting(AsyncAdmin.create_topics)
    delete_topics = _waiting(AsyncAdmin.delete_topics)
    alter_topic = _waiting(AsyncAdmin.alter_topic)
    add_partitions = _waiting(AsyncAdmin.add_partitions)
    list_topics = _waiting(AsyncAdmin.list_topics)
    find_topics = _waiting(AsyncAdmin.find_topics)
    describe_topics = _waiting(AsyncAdmin.describe_topics)
    delete_records = _waiting(AsyncAdmin.delete_records)
    list_offsets = _waiting(AsyncAdmin.list_offsets)
    offsets = _waiting(AsyncAdmin.offsets)
    describe_cluster = _waiting(AsyncAdmin.describe_cluster)
    summarize_cluster = _waiting(AsyncAdmin.summarize_cluster)
    verify_copies = _waiting(AsyncAdmin.verify_copies)
    describe_disks = _waiting(AsyncAdmin.describe_disks)
    describe_producers = _waiting(AsyncAdmin.describe_producers)
    describe_events = _waiting(AsyncAdmin.describe_events)
    describe_features = _waiting(AsyncAdmin.describe_features)
    describe_log_levels = _waiting(AsyncAdmin.describe_log_levels)
    alter_log_levels = _waiting(AsyncAdmin.alter_log_levels)
    transfer_leader = _waiting(AsyncAdmin.transfer_leader)
    reassign_partitions = _waiting(AsyncAdmin.reassign_partitions)
    cancel_reassignment = _waiting(AsyncAdmin.cancel_reassignment)
    throttle_moves = _waiting(AsyncAdmin.throttle_moves)
    upgrade_features = _waiting(AsyncAdmin.upgrade_features)
    recover_cluster = _waiting(AsyncAdmin.recover_cluster)
    create_acls = _waiting(AsyncAdmin.create_acls)
    describe_acls = _waiting(AsyncAdmin.describe_acls)
    delete_acls = _waiting(AsyncAdmin.delete_acls)
    check_acl = _waiting(AsyncAdmin.check_acl)
    describe_quotas = _waiting(AsyncAdmin.describe_quotas)
    alter_quotas = _waiting(AsyncAdmin.alter_quotas)
    reserve_broker_id = _waiting(AsyncAdmin.reserve_broker_id)
    decommission_broker = _waiting(AsyncAdmin.decommission_broker)
    cancel_decommission = _waiting(AsyncAdmin.cancel_decommission)
    list_groups = _waiting(AsyncAdmin.list_groups)
    describe_groups = _waiting(AsyncAdmin.describe_groups)
    delete_groups = _waiting(AsyncAdmin.delete_groups)
    delete_group_offsets = _waiting(AsyncAdmin.delete_group_offsets)
    group_offsets = _waiting(AsyncAdmin.group_offsets)
    alter_group_offsets = _waiting(AsyncAdmin.alter_group_offsets)
    commit_offsets = _waiting(AsyncAdmin.commit_offsets)

    list_users = _waiting(AsyncAdmin.list_users)
    create_user = _waiting(AsyncAdmin.create_user)
    rotate_user = _waiting(AsyncAdmin.rotate_user)
    delete_user = _waiting(AsyncAdmin.delete_user)

    create_token = _waiting(AsyncAdmin.create_token)
    describe_tokens = _waiting(AsyncAdmin.describe_tokens)
    renew_token = _waiting(AsyncAdmin.renew_token)
    expire_token = _waiting(AsyncAdmin.expire_token)

    def _call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        if self._closed:
            raise ClosedError("the admin client was closed")
        self._used = True
        return self._thread.call(work)

    def _end(self) -> None:
        self._thread.call(self._admin.close)

    def _end_of_forgotten(self) -> Callable[[], Coroutine[Any, Any, None]]:
        return self._admin.close
