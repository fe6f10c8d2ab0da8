"""Encode Arrow arrays as a batch body, buffer by buffer: the inverse of ``arrow``.

Bytes and errors are those of ``encode`` for the same records. Requires the extra ``arrow``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from raftlog import limits
from raftlog.errors import InvalidRequestError, RecordTooLargeError
from raftlog.record import compression
from raftlog.record.batch import BatchBody
from raftlog.record.compression import Codec
from raftlog.record.encoder import (
    body_of,
    check_header_count,
    check_highest,
    count_of,
    no_timestamps,
    timestamps_of,
)
from raftlog.record.payload import HeaderRows, JoinedColumn, header_rows, write

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    import pyarrow as pa

NULL_JOINED: Final = JoinedColumn(None, b"", None)


def encode_arrow(
    values: pa.Array,
    *,
    keys: pa.Array | None = None,
    headers: pa.Array | None = None,
    timestamps_ms: int | pa.Array | npt.NDArray[np.int64],
    codec: Codec = Codec.NONE,
    level: int | None = None,
) -> BatchBody:
    """Encode and compress the records of one batch, as ``encode`` does for Python values.

    ``values``, ``keys``: arrays, chunked arrays or slices of bytes or text (stored as UTF-8), with
    nulls. ``headers``: lists of structs of a name, ``key``, and a ``value``; null or empty for a
    record without headers. ``timestamps_ms``: one for all records, or one for each.

    Raises ``TypeError`` for an array of another type, ``InvalidRequestError`` for counts,
    timestamps, headers and levels, and ``RecordTooLargeError`` for records that do not fit into a
    batch.
    """
    compression.check_level(codec, level)
    count = count_of(values, keys, headers)
    timestamps, first_timestamp_ms, max_timestamp_ms = _timestamps(timestamps_ms, count)
    payload = write(
        count,
        timestamps=timestamps,
        offsets=None,
        keys=NULL_JOINED if keys is None else _column(keys, "key"),
        values=_column(values, "value"),
        headers=None if headers is None else _headers(headers),
    )
    return body_of(
        payload,
        codec=codec,
        level=level,
        record_count=count,
        first_timestamp_ms=first_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        last_offset_delta=count - 1,
    )


class Octets(NamedTuple):
    """An array's entries: the start and end of each in ``blob``. A null entry is empty."""

    ends: npt.NDArray[Any]  # one more than entries: the start of the first, then each end
    blob: npt.NDArray[np.uint8]
    nulls: npt.NDArray[np.int64] | None  # their rows, ascending, if there are any

    @property
    def lengths(self) -> npt.NDArray[Any]:
        lengths: npt.NDArray[Any] = self.ends[1:] - self.ends[:-1]
        return lengths


def octets_of(array: pa.Array | pa.ChunkedArray, what: str) -> Octets | None:
    """Return the entries of an array of bytes or text; None if all are null.

    Copies only bytes of null entries, several chunks, and views. Raises ``TypeError`` for an array
    of another type. ``what``: the name of the entries in the error.
    """
    array = _flat(array, what)
    if array.null_count == len(array):
        return None
    nulls = _null_rows(array) if array.null_count else None
    ends, blob = _ends_and_blob(array)
    if nulls is not None and (ends[nulls + 1] != ends[nulls]).any():
        is_text = "string" in str(array.type)
        ends, blob = _ends_and_blob(array.fill_null("" if is_text else b""))
    return Octets(ends, blob, nulls)


def _flat(array: pa.Array | pa.ChunkedArray, what: str) -> pa.Array:
    """Return the array as one array of a type that has a blob."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if not isinstance(array, pa.Array):
        raise TypeError(f"{what}s of type {type(array).__name__}. Pass a pyarrow array")
    types, kind = pa.types, array.type
    if (
        types.is_binary(kind)
        or types.is_string(kind)
        or types.is_large_binary(kind)
        or types.is_large_string(kind)
        or types.is_null(kind)
    ):
        return array
    if types.is_fixed_size_binary(kind) or types.is_binary_view(kind) or types.is_string_view(kind):
        return array.cast(pa.large_binary())
    raise TypeError(
        f"{what}s of Arrow's type {kind}, not bytes. Cast them to binary or string first"
    )


def _ends_and_blob(array: pa.Array) -> tuple[npt.NDArray[Any], npt.NDArray[np.uint8]]:
    import numpy as np

    number = np.dtype(np.int64 if str(array.type).startswith("large_") else np.int32)
    _, ends, blob = array.buffers()
    return (
        np.frombuffer(ends, number, len(array) + 1, array.offset * number.itemsize),
        np.frombuffer(b"" if blob is None else blob, np.uint8),
    )


def _null_rows(array: pa.Array) -> npt.NDArray[np.int64]:
    import numpy as np

    first, shift = divmod(array.offset, 8)
    bits = np.frombuffer(array.buffers()[0], np.uint8)[first:]
    is_valid = np.unpackbits(bits, count=shift + len(array), bitorder="little")
    return np.flatnonzero(is_valid[shift:] == 0)


def _column(array: pa.Array | pa.ChunkedArray, what: str) -> JoinedColumn:
    octets = octets_of(array, what)
    if octets is None:
        return NULL_JOINED
    ends, blob, nulls = octets
    return JoinedColumn(
        octets.lengths.astype("<u4").tobytes(),
        blob[int(ends[0]) : int(ends[-1])].data,
        None if nulls is None else nulls.astype("<u4").tobytes(),
    )


def _timestamps(
    timestamps_ms: int | pa.Array | npt.NDArray[np.int64], count: int
) -> tuple[bytes, int, int]:
    """Return the column of timestamps, the first and the highest."""
    import numpy as np
    import pyarrow as pa

    if isinstance(timestamps_ms, int):
        return timestamps_of(timestamps_ms, count)
    if isinstance(timestamps_ms, pa.Array | pa.ChunkedArray):
        if timestamps_ms.null_count:
            raise no_timestamps(count, f"{timestamps_ms.null_count} are null")
        kind = str(timestamps_ms.type)
        numbers = np.asarray(timestamps_ms)
    else:
        numbers = np.asarray(timestamps_ms)
        kind = str(numbers.dtype)
    if numbers.dtype.kind not in "iu" or numbers.ndim != 1:
        raise no_timestamps(count, f"they are of type {kind}")
    if len(numbers) != count:
        raise no_timestamps(count, f"there are {len(numbers)}")
    if numbers.min() < 0:
        raise no_timestamps(count, f"one is {numbers.min()}")
    highest = int(numbers.max())
    check_highest(highest)
    return numbers.astype("<u8").tobytes(), int(numbers[0]), highest


def _headers(array: pa.Array | pa.ChunkedArray) -> HeaderRows | None:
    """Return the array of headers, or None if no record has headers."""
    import pyarrow as pa

    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    kind = array.type
    if pa.types.is_null(kind):
        return None
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    fields = set(kind.value_type.names) if is_list and pa.types.is_struct(kind.value_type) else None
    if fields != {"key", "value"}:
        raise _no_headers(f"these are of Arrow's type {kind}, not list<struct<key, value>>")
    pairs = array.flatten()  # without entries under nulls or outside the slice
    check_header_count(len(pairs))
    if not len(pairs):
        return None
    names, values = pairs.field("key"), pairs.field("value")
    if pairs.null_count or names.null_count:
        raise _no_headers("one is null, or its name is")
    if not any(is_text(names.type) for is_text in (pa.types.is_string, pa.types.is_large_string)):
        raise _no_headers(f"the names are of Arrow's type {names.type}")
    try:
        names.validate(full=True)
    except pa.ArrowInvalid as error:
        raise _no_headers(error) from error
    counts = array.value_lengths().fill_null(0)
    size = names.nbytes + values.nbytes
    if size > limits.BATCH_UNCOMPRESSED_BYTES_MAX:
        raise RecordTooLargeError(
            f"headers of {size} bytes, over the {limits.BATCH_UNCOMPRESSED_BYTES_MAX} that one "
            "batch may have. Send fewer records in a batch"
        )
    packed = counts.to_numpy().astype("<u4").tobytes()
    return header_rows(packed, _column(names, "header name"), _column(values, "header value"))


def _no_headers(reason: object) -> InvalidRequestError:
    return InvalidRequestError(
        f"a record's headers are pairs of a name (str) and a value (bytes or None): {reason}"
    )
