"""A scan as a ``pyarrow.dataset.Dataset``: how query engines ask for columns and conditions.

Imports pyarrow, so it is imported when it is used.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from raftlog.client.scan import Bounds, Condition

if TYPE_CHECKING:
    from raftlog.client.scan import Scan

# A text in a condition that has no character of the syntax: others are not analysed.
_TEXT: Final = re.compile(r'"[^"\\()]*"')
_is_word: Final = re.compile(r"\w+").fullmatch  # of a column: it is no syntax of a condition
_LEAF: Final = re.compile(r"(offset|partition|timestamp) (==|<=|>=|<|>) (\S+(?: \S+)?)")


class ScanDataset(ds.Dataset):  # type: ignore[misc] # pyarrow has no type information
    """Dataset that reads a scan again for each scanner. DuckDB requires this class of pyarrow."""

    def __init__(self, scan: Scan) -> None:
        self._scan = scan
        self.failure: Exception | None = None  # of the last reading; engines wrap it in their own

    def __reduce__(self) -> Any:
        raise TypeError("a dataset of a topic cannot be pickled. Call raftlog.scan in each process")

    @property
    def schema(self) -> pa.Schema:
        return self._scan.schema

    def scanner(
        self,
        columns: list[str] | None = None,
        filter: pc.Expression | None = None,  # noqa: A002 - pyarrow's name
        **_options: Any,
    ) -> Scanner:
        """Return a scanner of these columns and rows.

        Conditions on partition, offset and timestamp limit what is read from the log.
        """
        scan, schema = self._scan, self.schema
        wanted = schema.names if columns is None else list(columns) or schema.names[:1]
        names = list(wanted)
        if filter is not None:
            text = str(filter)
            # At least the columns of the filter: names that its text contains.
            names += [name for name in schema.names if name in text and name not in names]
            if all(map(_is_word, schema.names)):
                scan = scan.limited(Bounds.of(conditions(text)))
        result = pa.schema([schema.field(name) for name in wanted])
        batches = self._batches(scan.reader(names), wanted, filter)
        return Scanner(pa.RecordBatchReader.from_batches(result, batches))

    def _batches(
        self, reader: pa.RecordBatchReader, names: list[str], condition: pc.Expression | None
    ) -> Iterator[pa.RecordBatch]:
        try:
            for batch in reader:
                table = pa.Table.from_batches([batch])
                if condition is not None:
                    table = table.filter(condition)
                yield from table.select(names).to_batches()
        except Exception as error:
            self.failure = error
            raise

    def to_table(self, **options: Any) -> pa.Table:
        return self.scanner(**options).to_table()

    def to_batches(self, **options: Any) -> Iterator[pa.RecordBatch]:
        return self.scanner(**options).to_batches()

    def count_rows(self, **options: Any) -> int:
        return sum(len(batch) for batch in self.to_batches(columns=[], **options))


class Scanner:
    """The methods of ``pyarrow.dataset.Scanner`` that query engines call.

    pyarrow's own scanner reads hundreds of MB ahead of an engine that is slower than the log.
    """

    def __init__(self, reader: pa.RecordBatchReader) -> None:
        self._reader = reader

    def to_reader(self) -> pa.RecordBatchReader:
        return self._reader

    def to_table(self) -> pa.Table:
        return self._reader.read_all()

    def to_batches(self) -> Iterator[pa.RecordBatch]:
        return iter(self._reader)


def conditions(text: str) -> list[Condition]:
    """Return conditions that every row of a filter fulfils, from the text of its expression.

    The filter can have more conditions, which are ignored: it is applied to the rows, too.
    """
    text = _TEXT.sub('""', text)
    if '"' in text.replace('""', ""):
        return []
    found: list[Condition] = []
    parts = [text]
    while parts:
        part = parts.pop()
        inner = _divided(part[1:-1]) if part.startswith("(") and part.endswith(")") else []
        if len(inner) > 1:
            parts += inner
            continue
        leaf = _LEAF.fullmatch(part[1:-1])
        if leaf is not None and (value := _value(leaf[1], leaf[3])) is not None:
            found.append((leaf[1], leaf[2], value))
    return found


def _divided(text: str) -> list[str]:
    """Divide at each " and " outside of parentheses."""
    parts, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character == "(") - (character == ")")
        if depth < 0:
            return [text]
        if depth == 0 and text.startswith(" and ", at):
            parts.append(text[start:at])
            start = at + len(" and ")
    return [*parts, text[start:]]


def _value(name: str, text: str) -> int | datetime | None:
    """Return a literal of an expression; None if it is of another type."""
    if name != "timestamp":
        return int(text) if re.fullmatch(r"-?\d{1,18}", text) else None
    # Arrow writes up to 9 digits of a second.
    if re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{1,6})?Z", text) is None:
        return None
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return None
