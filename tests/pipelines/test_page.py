"""The page "Coming from" and what `make pipelines` runs agree; the outputs are right."""

from __future__ import annotations

import re
from collections import Counter

from docs.examples.pipelines import make_access_log
from tests.pipelines.run import ALL, EXAMPLES, ROOT

PAGE = ROOT / "docs" / "how-to" / "coming-from.md"
LINES_MAX = 40
LINE = re.compile(r'(\S+) - - \[(\d+)[^"]*"GET (\S+) [^"]*" (\d+) ')


def test_the_page_has_each_example_with_its_output() -> None:
    included = set(re.findall(r"examples/pipelines/(\S+)", PAGE.read_text(encoding="utf-8")))
    assert {name for each in ALL for name in (each.file, f"{each.name}.out")} <= included
    files = {path.name for path in EXAMPLES.iterdir() if path.is_file()}
    assert files == {name for name in included if "/" not in name}
    long = [
        each.file
        for each in ALL
        if len((EXAMPLES / each.file).read_text(encoding="utf-8").splitlines()) > LINES_MAX
    ]
    assert not long, f"cut these to {LINES_MAX} lines: {long}"


def test_the_expected_outputs_are_those_of_the_log() -> None:
    found = [LINE.match(line) for line in make_access_log.lines()]
    rows = [match.groups() for match in found if match]
    assert len(rows) == len(found) == 10_000

    def top(counts: Counter[str]) -> list[tuple[str, int]]:
        return sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:5]

    def lines_of(name: str) -> list[str]:
        return (EXAMPLES / f"{name}.out").read_text(encoding="utf-8").splitlines()

    def printed(name: str) -> list[list[str]]:
        return [line.split() for line in lines_of(name)]

    hosts, days, paths, statuses = (Counter(column) for column in zip(*rows, strict=True))
    missing = Counter(path for _, _, path, status in rows if status == "404")
    words = Counter(word for _, _, path, _ in rows for word in re.findall("[a-z]+", path.lower()))
    expected = {
        "storm_word_count": top(words),
        "pig_dataframe": top(missing),
        "redis_counts": sorted(statuses.items()),
    }
    last = {host: (host, path, int(status)) for host, _, path, status in rows}
    visitors = [
        f"{len(last)} visitors",
        *(
            str((host, f"GET {path} HTTP/1.1", status))
            for host, path, status in sorted(last.values())[:3]
        ),
    ]
    assert lines_of("cassandra_rows") == visitors
    assert lines_of("opensearch_documents") == [
        f"{len(rows)} documents",
        *(f"{status} {count}" for status, count in sorted(statuses.items())),
        f"{paths['/products/13']} of /products/13",
    ]
    for name, pairs in expected.items():
        assert printed(name) == [[text, str(count)] for text, count in pairs]
    assert [row[:2] for row in printed("s4_elements")] == [[h, str(n)] for h, n in top(hosts)]
    rows_of_paths = "".join(f"{row}\n" for row in top(paths))
    assert (EXAMPLES / "postgres_upsert.out").read_text(encoding="utf-8") == rows_of_paths
    table = (EXAMPLES / "hive_sql.out").read_text(encoding="utf-8").splitlines()[3:8]
    by_day = [tuple(cell.strip() for cell in line.split("|")[1:3]) for line in table]
    assert by_day == [(f"2015-05-{day}", str(count)) for day, count in sorted(days.items())]
