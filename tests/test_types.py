"""The plain values that everything uses: types, errors, texts on how to install."""

from __future__ import annotations

import builtins
import contextlib
import importlib
import re
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

import raftlog
from raftlog import Admin, Consumer, NewTopic, Producer, aio, errors, install
from raftlog.errors import (
    InvalidGroupError,
    InvalidTopicError,
    OutcomeUnknownError,
    RaftlogError,
    RefusedError,
    RetriableError,
    StorageError,
    from_code,
)
from raftlog.install import install_command
from raftlog.lazy import lazy_names
from raftlog.types import (
    TopicPartition,
    check_group_id,
    check_instance_id,
    check_not_internal,
    check_topic_name,
    is_internal_topic,
)

# -- types -----------------------------------------------------------------------------------------

# Topic names, by Kafka's rule, and how a partition is written.


@pytest.mark.parametrize("name", ["a", "clicks", "a.b_c-D9", "...", "x" * 249])
def test_legal_names_are_returned(name: str) -> None:
    assert check_topic_name(name) == name


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "a/b",
        "../a",
        "a b",
        "a\n",
        "naïve",
        "x" * 250,
        "x" * 300,
        "a\0b",
        "日本",
        "٤",
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidTopicError, match="is not a topic name: use 1 to 249"):
        check_topic_name(name)


@given(st.text(max_size=300))
def test_any_text_is_legal_or_refused(name: str) -> None:
    with contextlib.suppress(InvalidTopicError):
        assert check_topic_name(name).isascii()


def test_a_partition_is_written_with_a_colon() -> None:
    assert str(TopicPartition("clicks", 3)) == "clicks:3"


@pytest.mark.parametrize("check", [check_group_id, check_instance_id])
def test_names_of_groups_and_instances(check: Callable[[str], str]) -> None:
    for name in ("g", "billing-2", "two words", "naïve/日本", "x" * 255):
        assert check(name) == name
    for name in ("", " g", "g ", "a\nb", "a\0b", "x" * 256, "x" * 300):
        with pytest.raises(InvalidGroupError, match="use 1 to 255 printable characters"):
            check(name)


@pytest.mark.parametrize(
    ("name", "is_internal"),
    [
        *((name, True) for name in ("__consumer_offsets", "__audit", "__transaction_state")),
        ("__raftlog_later", True),
        # Debezium, Strimzi and Cruise Control create these.
        *((name, False) for name in ("_a__b", "__debezium-heartbeat.x", "__strimzi_canary", "__a")),
    ],
)
def test_internal_topics_are_told_by_their_names(name: str, is_internal: bool) -> None:
    assert is_internal_topic(name) is is_internal
    with pytest.raises(InvalidTopicError) if is_internal else contextlib.nullcontext():
        check_not_internal(name)


# -- exported members ------------------------------------------------------------------------------
#
# What users import is what ``__all__`` says, and nothing else is promised.


# docs and programs out there use these: rename one only with an ADR and an alias.
PROMISED = {
    *("Admin", "Consumer", "ConsumerRecord", "NewTopic", "Producer", "RecordMetadata"),
    *("TopicPartition", "aio", "errors"),
}


def test_what_the_documentation_promises_is_there() -> None:
    assert set(raftlog.__all__) >= PROMISED


def test_every_public_name_can_be_imported() -> None:
    for name in raftlog.__all__:
        assert getattr(raftlog, name) is not None
        assert name in dir(raftlog)


def test_importing_everything_replaces_no_built_in_function() -> None:
    assert not set(raftlog.__all__) & set(dir(builtins))
    assert "open" in dir(raftlog)


def test_other_names_are_refused_as_any_module_does() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        raftlog.Nonsense  # noqa: B018 - looking it up is the test


def test_asyncio_names_are_in_aio() -> None:
    aio = importlib.import_module("raftlog.aio")
    assert set(aio.__all__) == {
        "AsyncAdmin",
        "AsyncConsumer",
        "AsyncProducer",
        "AsyncTransaction",
    }
    assert dir(aio) == [name for name in aio.__all__ if getattr(aio, name) is not None]


# -- kafka names -----------------------------------------------------------------------------------
#
# Names of Kafka's clients are answered with raftlog's.


@pytest.mark.parametrize(
    ("make", "argument", "name"),
    [
        (NewTopic, {"topic": "t"}, "name"),
        (Producer, {"bootstrap_servers": "h:1"}, "bootstrap"),
        (Producer, {"compression_type": "lz4"}, "compression"),
        (Producer, {"linger.ms": 5}, "linger_ms"),
        (Producer, {"security.protocol": "SSL"}, "security_protocol"),
        (Producer, {"sasl_plain_username": "u"}, "sasl_username"),
        (Consumer, {"group_id": "g"}, "group"),
        (Consumer, {"enable_auto_commit": False}, "auto_commit"),
        (Consumer, {"group.id": "g"}, "group"),
        (Consumer, {"auto.offset.reset": "earliest"}, "auto_offset_reset"),
        (Admin, {"bootstrap_servers": "h:1"}, "bootstrap"),
        (aio.AsyncProducer, {"bootstrap.servers": "h:1"}, "bootstrap"),
        (aio.AsyncConsumer, {"max_poll_records": 5}, "poll(max_records=...)"),
        (aio.AsyncAdmin, {"bootstrap_servers": "h:1"}, "bootstrap"),
        (lambda **given: NewTopic("t", **given), {"num_partitions": 3}, "partitions"),
    ],
)
def test_the_error_gives_the_name_to_use(
    make: Callable[..., Any], argument: dict[str, object], name: str
) -> None:
    with pytest.raises(TypeError, match=re.escape(f"{next(iter(argument))!r}: use {name}")):
        make(**argument)


@pytest.mark.parametrize("argument", ["group_id", "enable.auto.commit", "num_partitions"])
@pytest.mark.parametrize("make", [Producer, Admin, aio.AsyncProducer])
def test_a_setting_of_another_client_is_not_advised(
    make: Callable[..., Any], argument: str
) -> None:
    with pytest.raises(TypeError, match=f"'{argument}': remove it"):
        make(**{argument: 1})


def test_other_unknown_names_are_pythons_to_refuse() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'lingerms'"):
        Producer(lingerms=5)  # type: ignore[call-arg]


def test_a_dict_of_settings_is_answered_too() -> None:
    with pytest.raises(TypeError, match="settings as keyword arguments"):
        Producer({"bootstrap.servers": "h:1"})  # type: ignore[arg-type]


# -- lazy ------------------------------------------------------------------------------------------
#
# Names that a package imports at their first use.


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    made = ModuleType("lazy_package")
    made.__getattr__ = lazy_names("lazy_package", {"Fraction": "fractions"})  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy_package", made)
    return made


def test_a_name_is_imported_once(package: ModuleType) -> None:
    from fractions import Fraction

    assert "Fraction" not in vars(package)
    assert package.Fraction is Fraction
    assert vars(package)["Fraction"] is Fraction


def test_other_names_are_refused_as_any_module_does_in_lazy(package: ModuleType) -> None:
    with pytest.raises(AttributeError, match="module 'lazy_package' has no attribute 'nothing'"):
        package.nothing  # noqa: B018 - looking it up is the test


# -- errors ----------------------------------------------------------------------------------------

# The error tree: drawn as it is, each with its number, kind to numbers that it does not know.


def tree(base: type[RaftlogError]) -> list[type[RaftlogError]]:
    return [base, *(leaf for child in base.__subclasses__() for leaf in tree(child))]


ALL = [error for error in tree(RaftlogError) if error.__module__ == "raftlog.errors"]


def test_the_drawing_is_the_tree() -> None:
    drawn = re.findall(
        r"^    ((?:[│ ]   )*)(?:[├└]── )?(\w+Error)\b", errors.__doc__ or "", re.MULTILINE
    )
    depths = {name: len(error.__mro__) for error in ALL for name in [error.__name__]}
    assert [name for _, name in drawn] == [error.__name__ for error in ALL]
    root = depths["RaftlogError"]
    for indent, name in drawn[1:]:
        assert len(indent) // 4 + 1 == depths[name] - root, name


def test_every_error_has_a_number_of_its_own() -> None:
    codes = [error.code for error in ALL]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    ("first", "kind"),
    [(1, RetriableError), (100, OutcomeUnknownError), (200, RefusedError), (300, StorageError)],
)
def test_numbers_lie_in_the_range_of_their_kind(first: int, kind: type[RaftlogError]) -> None:
    for error in tree(kind):
        assert first <= error.code < first + (99 if first == 1 else 100), error


def test_an_error_survives_the_wire() -> None:
    for error in ALL[1:]:
        again = from_code(error.code, "what happened")
        assert type(again) is error
        assert str(again) == "what happened"


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (99, RetriableError),
        (199, OutcomeUnknownError),
        (299, RefusedError),
        (399, StorageError),
        (9_999, RaftlogError),
        (-7, RaftlogError),
    ],
)
def test_an_unknown_number_becomes_the_kind_of_its_range(
    code: int, kind: type[RaftlogError]
) -> None:
    error = from_code(code, "from the future")
    assert type(error) is kind
    assert str(error) == f"from the future (error code {code})"


def test_every_error_says_what_it_means() -> None:
    assert all((error.__doc__ or "").strip().endswith(".") for error in ALL)


# -- installation ----------------------------------------------------------------------------------

# Texts on how to install raftlog and its extras.


ROOT: Final = Path(__file__).parents[1]
CALL: Final = re.compile(r"install_command\(['\"](\w+)['\"]\)")


def test_the_command_names_a_clone() -> None:
    assert install_command() == "pip install -e . in a clone of the repository"
    assert install_command("arrow") == "pip install -e '.[arrow]' in a clone of the repository"


def test_a_client_is_told_the_extra_of_the_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "find_spec", lambda _name: None)
    expected = "pip install './deploy/client[sasl]' in a clone of the repository"
    assert install_command("sasl") == expected


def test_the_extras_in_texts_exist() -> None:
    used = {
        found
        for package in ("raftlog", "cli", "spark_source")
        for file in (ROOT / package).rglob("*.py")
        for found in CALL.findall(file.read_text())
    }
    extras: set[str] = set()
    for path in (ROOT, ROOT / "deploy" / "client"):
        project = tomllib.loads((path / "pyproject.toml").read_text())["project"]
        extras |= project["optional-dependencies"].keys()
    assert used
    assert used <= extras
