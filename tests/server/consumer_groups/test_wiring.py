"""A broker's coordinator is made of its settings and hears what it has to."""

from __future__ import annotations

from pathlib import Path

from raftlog.server.broker import MINUTE_MS
from tests.server.harness import RunningBroker, running


def test_settings_come_to_the_shards(tmp_path: Path) -> None:
    with running(
        tmp_path / "data",
        group_min_session_timeout_ms="200",
        group_max_session_timeout_ms="400",
        group_max_size="5",
        offsets_retention_minutes="3",
        group_assignors="range",
    ) as broker:
        coordinator = broker.broker.context.coordinator
        groups = broker.call(coordinator._services.new_groups)
        settings = groups._world.settings
        assert (settings.session_timeout_ms_min, settings.session_timeout_ms_max) == (200, 400)
        assert settings.members_per_group_max == 5
        assert settings.offsets_retention_ms == 3 * MINUTE_MS
        assert settings.default_assignor == "range"


def test_it_hears_of_topics(broker: RunningBroker) -> None:
    context = broker.broker.context
    before = broker.call(lambda: context.coordinator.metadata_version)
    with broker.client() as client:
        client.create("t")
    assert broker.call(lambda: context.coordinator.metadata_version) > before


def test_one_broker_has_all_copies(broker: RunningBroker) -> None:
    context = broker.broker.context
    assert broker.call(context.lookup._copies) == (1, 1)
