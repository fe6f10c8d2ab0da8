"""A follower's log holds a prefix of its leader's, through fail-overs, crashes and bad disks."""

from __future__ import annotations

import pytest
from hypothesis import settings

from tests.storage.replica_machine import ReplicaMachine

pytestmark = pytest.mark.timeout(1_800)  # `make seeds` runs many more examples

TestReplica = ReplicaMachine.TestCase
TestReplica.settings = settings(max_examples=2 * settings().max_examples, stateful_step_count=50)
