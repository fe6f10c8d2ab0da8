"""The list of a backup."""

from __future__ import annotations

import pytest

from raftlog.backup.writer import (
    Chunk,
    CommittedOffset,
    Manifest,
    PartitionFiles,
    TopicFiles,
    chunk_name,
    decode,
    encode,
)
from raftlog.errors import InvalidRequestError, UnsupportedVersionError

MADE = Manifest(
    1,
    "cluster",
    123,
    {"t": TopicFiles("id", 3, {"retention.ms": "1"}, [
        PartitionFiles(5, 9, [Chunk("f", 5, 9, 100, (1 << 64) - 1)])
    ])},
    {"g": [CommittedOffset("t", 0, 7, "note")]},
)  # fmt: skip


def test_it_is_read_as_it_was_written() -> None:
    assert decode(encode(MADE)) == MADE


def test_other_files_and_formats_are_refused() -> None:
    for data in (b"", b"{}", b"[1]", b"\xff", encode(MADE).replace(b'"end": 9', b'"end": "9"')):
        with pytest.raises(InvalidRequestError, match="not the manifest of a backup"):
            decode(data)
    with pytest.raises(UnsupportedVersionError, match="has the format 2"):
        decode(encode(MADE).replace(b'"format": 1', b'"format": 2'))


def test_files_are_sorted_by_offset() -> None:
    names = [chunk_name("t", "id", 0, offset, b"") for offset in (0, 9, 10, 10**18)]
    assert names == sorted(names)
    assert names[1] == "topics/t/id/0/00000000000000000009-e3b0c44298fc1c14.batches"


def test_files_of_other_content_have_other_names() -> None:
    assert chunk_name("t", "id", 0, 9, b"a") != chunk_name("t", "id", 0, 9, b"b")
