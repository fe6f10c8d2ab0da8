"""The registry by its HTTP interface, without HTTP: paths, answers, codes and the state behind."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftlog import limits
from raftlog.errors import InvalidRequestError
from raftlog.registry.rest import Call, answer, is_quick, is_write, required
from raftlog.registry.state import Registry


class Scene:
    """A registry, and its log."""

    def __init__(self) -> None:
        self.registry = Registry()
        self.log: dict[bytes, bytes | None] = {}

    def __call__(self, request: str, body: Any = None, *, unknown: bool = False) -> Any:
        """Send "METHOD /path". Returns the content of the answer, or the code of its error."""
        method, _, url = request.partition(" ")
        split = urlsplit(url)
        content = b"" if body is None else json.dumps(body).encode()
        call = Call(method, split.path, dict(parse_qsl(split.query)), content, unknown)
        found = answer(self.registry, call, version="1.2", cluster_id="c")
        assert is_write(call) or not found.records
        for key, value in found.records:
            self.registry.replay(key, value)
            self.log[key] = value
        decoded = json.loads(found.body)
        if found.status == 200:
            return decoded
        code = decoded["error_code"]
        assert found.status == (code // 100 if code > 999 else code)
        assert decoded["message"]
        return code

    def restarted(self) -> Registry:
        """Replay the log after compaction, which keeps no tombstones."""
        registry = Registry()
        for key, value in self.log.items():
            if value is not None:
                registry.replay(key, value)
        return registry


def avro(*names: str, default: Any = None) -> dict[str, Any]:
    fields = [{"name": name, "type": "string"} for name in names]
    if default is not None:
        fields[-1]["default"] = default
    return {"schema": json.dumps({"type": "record", "name": "R", "fields": fields})}


@pytest.fixture
def scene() -> Scene:
    return Scene()


def test_a_schema_has_one_id_in_all_subjects(scene: Scene) -> None:
    assert scene("POST /subjects/a/versions", avro("x")) == {"id": 1}
    assert scene("POST /subjects/a/versions", avro("x", "y", default="")) == {"id": 2}
    assert scene("POST /subjects/b%2Fc/versions", avro("x")) == {"id": 1}
    assert scene("POST /subjects/a/versions", avro("x")) == {"id": 1}  # no third version
    assert scene("GET /subjects") == ["a", "b/c"]
    assert scene("GET /subjects?subjectPrefix=b") == ["b/c"]
    assert scene("GET /subjects/a/versions") == [1, 2]
    assert scene("GET /schemas/ids/1/versions") == [
        {"subject": "a", "version": 1},
        {"subject": "b/c", "version": 1},
    ]
    assert scene("GET /schemas/ids/1/subjects") == ["a", "b/c"]
    assert scene("GET /schemas/ids/1") == {"schema": avro("x")["schema"].replace(" ", "")}
    assert scene("GET /schemas/ids/1?fetchMaxId=true")["maxId"] == 2
    assert scene("GET /subjects/a/versions/latest")["version"] == 2
    assert scene("GET /subjects/a/versions/-1/schema")["name"] == "R"
    assert scene("POST /subjects/a", avro("x")) == {
        "subject": "a",
        "version": 1,
        "id": 1,
        "schema": avro("x")["schema"].replace(" ", ""),
    }
    assert [each["version"] for each in scene("GET /schemas?latestOnly=true")] == [2, 1]


def test_answers_have_no_fields_that_older_clients_do_not_know(scene: Scene) -> None:
    body = {**avro("x"), "metadata": {"properties": {"owner": "me"}}, "later": 1}
    assert scene("POST /subjects/a/versions", body) == {"id": 1}
    stored = scene("GET /subjects/a/versions/1")
    assert stored["metadata"] == {"properties": {"owner": "me"}}
    assert "guid" not in stored
    known = scene("POST /subjects/a/versions", body, unknown=True)
    assert scene(f"GET /schemas/guids/{known['guid']}")["schema"] == stored["schema"]
    assert scene("PUT /config/a", {"compatibility": "full", "owner": 1}) == {
        "compatibility": "FULL"
    }


def test_levels_decide_what_is_compatible(scene: Scene) -> None:
    assert scene("GET /config") == {"compatibilityLevel": "BACKWARD"}
    scene("POST /subjects/a/versions", avro("x"))
    assert scene("POST /subjects/a/versions", avro("x", "y")) == 409
    verbose = scene("POST /compatibility/subjects/a/versions/latest?verbose=true", avro("x", "y"))
    assert not verbose["is_compatible"]
    assert "version 1" in verbose["messages"][0]
    assert scene("POST /compatibility/subjects/new/versions/latest", avro("x")) == {
        "is_compatible": True
    }
    assert scene("PUT /config/a", {"compatibility": "forward"}) == {"compatibility": "FORWARD"}
    assert scene("POST /subjects/a/versions", avro("x", "y")) == {"id": 2}
    assert scene("POST /subjects/a/versions", avro("z", "x")) == 409
    scene("PUT /config/a", {"compatibility": "BACKWARD"})
    assert scene("POST /subjects/a/versions", avro("x", "y", "z", default="")) == {"id": 3}
    scene("PUT /config/a", {"compatibility": "BACKWARD_TRANSITIVE"})
    assert scene("POST /compatibility/subjects/a/versions", avro("y", default="")) == {
        "is_compatible": True
    }
    assert scene("POST /compatibility/subjects/a/versions", avro("y")) == {"is_compatible": False}
    scene("PUT /config/a", {"compatibility": "NONE"})
    assert scene("POST /subjects/a/versions", {"schema": '"int"'}) == {"id": 4}
    assert scene("DELETE /config/a") == {"compatibilityLevel": "NONE"}
    assert scene("GET /config/a") == 40408
    assert scene("GET /config/a?defaultToGlobal=true") == {"compatibilityLevel": "BACKWARD"}


def test_deletions_are_soft_and_then_permanent(scene: Scene) -> None:
    scene("POST /subjects/a/versions", avro("x"))
    scene("POST /subjects/a/versions", avro("x", "y", default=""))
    assert scene("DELETE /subjects/a/versions/2?permanent=true") == 40407
    assert scene("DELETE /subjects/a/versions/2") == 2
    assert scene("DELETE /subjects/a/versions/2") == 40406
    assert scene("GET /subjects/a/versions/2") == 40402
    assert scene("GET /subjects/a/versions/2?deleted=true")["id"] == 2
    assert scene("GET /schemas/ids/2")  # data with this ID can still be read
    assert scene("DELETE /subjects/a/versions/2?permanent=true") == 2
    assert scene("GET /schemas/ids/2") == 40403
    assert scene("DELETE /subjects/a?permanent=true") == 40405
    assert scene("DELETE /subjects/a") == [1]
    assert scene("DELETE /subjects/a") == 40404
    assert scene("GET /subjects") == []
    assert scene("GET /subjects?deleted=true") == scene("GET /subjects?deletedOnly=true") == ["a"]
    assert scene("DELETE /subjects/a?permanent=true") == [1]
    assert scene("DELETE /subjects/a") == 40401
    # Compaction removes all that the IDs were in, and the next one is not a former one.
    scene.registry = scene.restarted()
    assert scene("POST /subjects/a/versions", avro("new")) == {"id": 3}


def test_a_referenced_schema_stays(scene: Scene) -> None:
    scene("POST /subjects/inner/versions", avro("x"))
    outer = {
        "schema": json.dumps(
            {"type": "record", "name": "Q", "fields": [{"name": "r", "type": "R"}]}
        ),
        "references": [{"name": "R", "subject": "inner", "version": -1}],
    }
    assert scene("POST /subjects/outer/versions", outer) == {"id": 2}
    assert scene("GET /subjects/outer/versions/1")["references"] == [
        {"name": "R", "subject": "inner", "version": 1}
    ]
    assert scene("GET /subjects/inner/versions/1/referencedby") == [2]
    assert scene("DELETE /subjects/inner") == scene("DELETE /subjects/inner/versions/1") == 42206
    outer["references"] = [{"name": "R", "subject": "inner", "version": 9}]
    assert scene("POST /subjects/outer/versions", outer) == 42201


def test_modes(scene: Scene) -> None:
    assert scene("GET /mode") == {"mode": "READWRITE"}
    assert scene("PUT /mode/a", {"mode": "import"}) == {"mode": "IMPORT"}
    assert scene("POST /subjects/a/versions", avro("x")) == 42205
    body = {**avro("x"), "id": 77, "version": 5}
    assert scene("POST /subjects/a/versions", body) == {"id": 77}
    assert scene("POST /subjects/a/versions", {**avro("y"), "id": 77}) == 42205
    assert scene("GET /subjects/a/versions") == [5]
    assert scene("DELETE /mode/a") == {"mode": "IMPORT"}
    assert scene("GET /mode/a") == 40409
    assert scene("POST /subjects/a/versions", {**avro("y"), "id": 78}) == 42205
    assert scene("POST /subjects/b/versions", avro("y")) == {"id": 78}  # above the imported one
    assert scene("PUT /mode", {"mode": "IMPORT"}) == 42205
    assert scene("PUT /mode", {"mode": "READONLY"}) == {"mode": "READONLY"}
    assert scene("POST /subjects/b/versions", avro("z")) == 42205
    assert scene("PUT /mode", {"mode": "odd"}) == 42204


@pytest.mark.parametrize(
    ("request_", "body", "code"),
    [
        ("GET /subjects/none/versions", None, 40401),
        ("GET /subjects/none/versions/1", None, 40401),
        ("GET /schemas/ids/9", None, 40403),
        ("GET /schemas/ids/x", None, 404),
        ("POST /subjects/none", avro("x"), 40401),
        ("POST /compatibility/subjects/none/versions/1", avro("x"), 40402),
        ("GET /subjects/a/versions/0", None, 42202),
        ("POST /subjects/a/versions", {"schema": "{"}, 42201),
        ("POST /subjects/a/versions", {}, 42201),
        ("POST /subjects/a/versions", [], 400),
        ("POST /subjects/a/versions", {**avro("x"), "references": 5}, 42201),
        ("POST /subjects/a/versions", {**avro("x"), "references": [5]}, 42201),
        ("POST /subjects/%07/versions", avro("x"), 42208),
        ("POST /subjects/a/versions", {"schema": "1", "schemaType": "XML"}, 42201),
        ("PUT /config", {"compatibility": "SOME"}, 42203),
        ("GET /subjects?offset=x", None, 400),
        ("PATCH /subjects", None, 405),
        ("GET /nothing", None, 404),
    ],
)
def test_errors_have_codes_of_confluent(scene: Scene, request_: str, body: Any, code: int) -> None:
    assert scene(request_, body) == code
    assert not scene.log


@pytest.mark.parametrize("value", ["\ud800", float("nan"), float("inf")])
def test_what_json_and_utf_8_do_not_have_is_refused(scene: Scene, value: Any) -> None:
    """Python's parser reads them; other clients could not read the answers."""
    assert scene("POST /subjects/s/versions", {**avro("a"), "metadata": {"a": value}}) == 400
    assert scene("PUT /config", {"alias": value}) == 400
    text = json.dumps({"type": "record", "name": "R", "doc": value, "fields": []})
    assert scene("POST /subjects/s/versions", {"schema": text}) == 42201
    text = json.dumps({"const": value})
    assert scene("POST /subjects/s", {"schema": text, "schemaType": "JSON"}) == 40401
    assert scene("POST /subjects/s/versions", {"schema": text, "schemaType": "JSON"}) == 42201


def test_other_paths(scene: Scene) -> None:
    assert scene("GET /schemas/types") == ["PROTOBUF", "JSON", "AVRO"]
    assert scene("GET /contexts") == ["."]
    assert scene("GET /v1/metadata/version")["version"] == "1.2"
    assert scene("GET /v1/metadata/id")["scope"]["clusters"]["kafka-cluster"] == "c"


def test_what_calls_require() -> None:
    def of(request: str) -> tuple[str, bool]:
        call = Call(*request.split(" "))
        return required(call), is_write(call)

    assert of("GET /subjects") == ("DESCRIBE", False)
    assert of("POST /subjects/a") == ("DESCRIBE", False)
    assert of("POST /compatibility/subjects/a/versions") == ("DESCRIBE", False)
    assert of("POST /subjects/a/versions") == ("WRITE", True)
    assert of("DELETE /subjects/a") == ("DELETE", True)
    assert of("PUT /config") == ("ALTER_CONFIGS", True)
    quick = ["/schemas/ids/1", "/subjects/a/versions/1", "/config", "/mode/a"]
    assert all(is_quick(Call("GET", path)) for path in quick)
    slow = ["/schemas", "/subjects", "/subjects/a/versions/1/referencedby"]
    assert not any(is_quick(Call("GET", path)) for path in slow)
    assert not is_quick(Call("GET", "/schemas/ids/1", {"format": "serialized"}))


def test_a_path_that_is_served_is_that_of_its_rights(scene: Scene) -> None:
    """Only names are encoded: another spelling of a write would require the rights of a read."""
    assert scene("POST /%73ubjects/a/versions", avro("x")) == 404
    assert scene("POST /subjects/a/%76ersions", avro("x")) == 404
    assert scene("PUT /%63onfig", {"compatibility": "NONE"}) == 404
    assert scene("POST /subjects/a%2Fb/versions", avro("x")) == {"id": 1}
    assert scene("GET /subjects") == ["a/b"]


def test_limits_come_first(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene("POST /subjects/a/versions", {"schema": '"int"'})
    monkeypatch.setattr(limits, "SCHEMA_VERSIONS_MAX", 1)
    assert scene("POST /subjects/a/versions", {"schema": '"long"'}) == 42205
    monkeypatch.setattr(limits, "SCHEMA_SUBJECTS_MAX", 1)
    assert scene("POST /subjects/b/versions", {"schema": '"long"'}) == 42205
    monkeypatch.undo()
    monkeypatch.setattr(limits, "SCHEMAS_BYTES_MAX", 10)
    assert scene("POST /subjects/b/versions", {"schema": '"string"'}) == 42205
    monkeypatch.setattr(limits, "SCHEMA_COMPARED_BYTES_MAX", 1)
    assert scene("POST /subjects/a/versions", {"schema": '"long"'}) == 42205
    monkeypatch.setattr(limits, "SCHEMA_REFERENCES_MAX", 0)
    reference = {"name": "n", "subject": "a", "version": 1}
    body = {"schema": '"int"', "references": [reference]}
    assert scene("POST /subjects/c/versions", body) == 42201


@pytest.mark.parametrize("record", [b"{", b"[]", b'{"keytype":"SCHEMA"}'])
def test_a_malformed_record_is_reported(record: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        Registry().replay(record, b"{}")
    registry = Registry()
    registry.replay(b'{"keytype":"LATER"}', b"{}")
    assert registry.skipped_records == 1


ACTIONS = st.lists(
    st.tuples(
        st.sampled_from(["put", "put", "put", "delete", "delete version", "restart"]),
        st.sampled_from("ab"),
        st.integers(1, 4),
    ),
    max_size=40,
)


@given(ACTIONS)
def test_an_id_is_never_given_twice_and_a_restart_changes_nothing(actions: Any) -> None:
    scene, texts = Scene(), {}
    scene("PUT /config", {"compatibility": "NONE"})
    for action, subject, number in actions:
        if action == "put":
            text = json.dumps({"type": "fixed", "name": "F", "size": number})
            given_id = scene(f"POST /subjects/{subject}/versions", {"schema": text})["id"]
            assert texts.setdefault(given_id, text) == text
        elif action == "restart":
            before = scene("GET /schemas?deleted=true")
            scene.registry = scene.restarted()
            assert scene("GET /schemas?deleted=true") == before
        else:
            place = subject if action == "delete" else f"{subject}/versions/{number}"
            scene(f"DELETE /subjects/{place}")
            scene(f"DELETE /subjects/{place}?permanent=true")
