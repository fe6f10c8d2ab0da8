"""Blocks in a file: what was synced is found or the file is refused; what was torn is cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from random import Random
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog.consensus import journal
from raftlog.consensus.journal import HEADER_BYTES, SECTOR_BYTES, Found
from raftlog.errors import DamagedJournalError
from raftlog.testing.disk import FOREVER, Fault, SimDisk, SimFile

PATH: Final = "journal"
# Around one sector, across several, with zeros in plenty.
PAYLOADS: Final = (b"first", b"x" * 470, bytes(1_300), b"", b"last" + bytes(700) + b"\1")


def disk_with(data: bytes) -> SimDisk:
    disk = SimDisk(Random(1))
    file = disk.open(PATH, create=True)
    file.append([data])
    file.sync()
    disk.sync_dir(".")
    return disk


def read(data: bytes) -> Found:
    return journal.read(disk_with(data).open(PATH))


def blocks(payloads: Sequence[bytes] = PAYLOADS, *, first: int = 7) -> list[bytes]:
    made: list[bytes] = []
    for number, payload in enumerate(payloads):
        position = sum(map(len, made))
        made.append(journal.encode(payload, sequence=first + number, position=position))
    return made


def test_what_was_written_is_read() -> None:
    made = blocks()
    found = read(b"".join(made))
    assert found.payloads == list(PAYLOADS)
    assert (found.sequence, found.end, found.torn) == (11, sum(map(len, made)), "")


@given(payloads=st.lists(st.binary(max_size=1_200), min_size=1, max_size=6))
def test_any_payloads_are_read(payloads: list[bytes]) -> None:
    found = read(b"".join(blocks(payloads)))
    assert (found.payloads, found.torn) == (payloads, "")


def test_the_format_is_the_one_drawn() -> None:
    block = journal.encode(b"\x90", sequence=3, position=0)
    assert block.hex(" ", 2) == (
        "726a 0200 0000 0300 0000 0000 0000 0000 0000 fb2f 1a98 dbfb 9a3c 7631 90ff"
    )


@pytest.mark.parametrize("last", PAYLOADS)
def test_no_flipped_bit_goes_unnoticed(last: bytes) -> None:
    """Not one is taken for a torn block either, though half of them are in the last one."""
    data = b"".join(blocks([b"one", bytes(600), last]))
    verdicts: Counter[str] = Counter()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            found = read(bytes(flipped))
        except DamagedJournalError:
            verdicts["refused"] += 1
        else:
            verdicts["cut" if found.torn else "unnoticed"] += 1
    assert verdicts == {"refused": 8 * len(data)}


def test_a_bit_that_was_alone_in_its_sector_is_the_one_that_cannot_be_told() -> None:
    """The last block then looks as if that sector had not been written; a block before it not."""
    lonely = bytes(900) + b"\1" + bytes(600)
    for following, verdict in ((), "cut"), ((b"next",), "refused"):
        data = bytearray(b"".join(blocks([b"one", lonely, *following])))
        data[data.index(b"\1" + bytes(600))] = 0
        try:
            found = read(bytes(data))
        except DamagedJournalError:
            assert verdict == "refused"
        else:
            assert (verdict, found.payloads) == ("cut", [b"one"])


@pytest.mark.parametrize("last", PAYLOADS)
def test_a_file_cut_off_anywhere_in_its_last_block_was_torn(last: bytes) -> None:
    made = blocks([b"one", b"two", last])
    whole = b"".join(made)
    start = len(whole) - len(made[-1])
    for size in range(start + 1, len(whole)):
        found = read(whole[:size])
        assert found.torn
        assert (found.payloads, found.end) == ([b"one", b"two"], start)


def test_any_sectors_of_the_last_block_may_be_unwritten() -> None:
    """Each subset, wherever the sectors' borders fall; one that changes nothing is no tear."""
    for shift in range(0, SECTOR_BYTES, 13):
        for last in PAYLOADS:
            made = blocks([b"-" * shift, last])
            whole = b"".join(made)
            start = len(made[0])
            borders = [
                start,
                *(b for b in range(0, len(whole), SECTOR_BYTES) if b > start),
                len(whole),
            ]
            pieces = list(pairwise(borders))
            for mask in range(1 << len(pieces)):
                data = bytearray(whole)
                for number, (begin, end) in enumerate(pieces):
                    if mask >> number & 1:
                        data[begin:end] = bytes(end - begin)
                found = read(bytes(data))
                assert bool(found.torn) == (data != whole)
                assert found.end == (start if found.torn else len(whole))


def test_the_first_block_is_never_torn() -> None:
    """A file is named only once its first block is durable: a part of one is damage."""
    (block,) = blocks([b"x" * 600])
    for size in (0, 1, HEADER_BYTES, len(block) - 1):
        with pytest.raises(DamagedJournalError, match="corrupt at byte 0"):
            read(block[:size])


def test_a_blank_sector_before_a_good_block_is_damage() -> None:
    made = blocks([b"one", b"-" * 1_500, b"three"])
    data = bytearray(b"".join(made))
    for begin in (len(made[0]), SECTOR_BYTES, 2 * SECTOR_BYTES):
        harmed = bytearray(data)
        end = (begin // SECTOR_BYTES + 1) * SECTOR_BYTES
        harmed[begin:end] = bytes(end - begin)
        with pytest.raises(DamagedJournalError, match=f"corrupt at byte {len(made[0])}"):
            read(bytes(harmed))


def test_a_block_that_is_missing_or_there_twice_is_damage() -> None:
    one, two, three = blocks([b"a" * 484, b"b" * 484, b"c" * 484])
    for wrong in (one + three, one + one, one + two + two):
        with pytest.raises(DamagedJournalError, match="expected block"):
            read(wrong)


def test_zeros_after_the_last_block_are_a_block_that_was_not_written() -> None:
    made = b"".join(blocks())
    for count in (1, HEADER_BYTES, SECTOR_BYTES, 5_000):
        found = read(made + bytes(count))
        assert (found.end, bool(found.torn)) == (len(made), True)


def test_garbage_after_the_last_block_is_damage() -> None:
    made = b"".join(blocks())
    with pytest.raises(DamagedJournalError, match=f"corrupt at byte {len(made)}"):
        read(made + b"\xaa" * 600)


def test_the_error_says_where_and_what_to_do() -> None:
    data = bytearray(b"".join(blocks([b"one", b"two"])))
    data[-2] ^= 4
    with pytest.raises(DamagedJournalError) as caught:
        read(bytes(data))
    text = str(caught.value)
    assert text.startswith("journal is corrupt at byte 32: the checksum of block 8")
    for words in ("does not start", "restore", "delete the data directory", "older copy"):
        assert words in text


def test_a_block_that_cannot_be_read_is_damage() -> None:
    disk = disk_with(b"".join(blocks()))
    file: SimFile = disk.open(PATH)
    disk.faults.append(Fault({"read"}, skip=2, times=FOREVER))
    with pytest.raises(DamagedJournalError, match="cannot be read"):
        journal.read(file)
