"""What the distributions install, and what the client's has."""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from importlib.metadata import packages_distributions
from itertools import chain
from pathlib import Path
from typing import Any, Final

import pytest
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

from raftlog.testing.cluster import cluster

# -- raftlog ---------------------------------------------------------------------------------------

# What the wheel installs, and that a wheel built from the source distribution is the same.


ROOT: Final = str(Path(__file__).parents[2])


def _files(builder: SdistBuilder | WheelBuilder, *, installed: bool = False) -> set[str]:
    """Return the paths of the files in the repository, or where a wheel installs them."""
    return {
        file.distribution_path if installed else file.relative_path
        for file in builder.recurse_included_files()
        if "__pycache__" not in file.distribution_path
    }


def test_the_wheel_installs_only_names_of_raftlog() -> None:
    installed = _files(WheelBuilder(ROOT), installed=True)
    assert {name.split("/")[0] for name in installed} == {
        "raftlog",
        "raftlog_cli",
        "raftlog_jepsen",
        "pyspark_raftlog",
    }
    assert "raftlog_cli/main.py" in installed


def test_the_source_distribution_contains_all_that_the_wheel_installs() -> None:
    """``python -m build`` and ``pip install raftlog-0.1.0.tar.gz`` build the wheel from it."""
    assert sorted(_files(WheelBuilder(ROOT)) - _files(SdistBuilder(ROOT))) == []


# -- raftlog-client --------------------------------------------------------------------------------

# ``raftlog-client`` has all that a client imports, and nothing of it imports anything else.


CLIENT_ROOT: Final = Path(__file__).parents[2]
PACKAGING: Final = CLIENT_ROOT / "deploy" / "client"


def _toml(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


CLIENT: Final = _toml(PACKAGING / "pyproject.toml")
WHOLE: Final = _toml(CLIENT_ROOT / "pyproject.toml")


def _modules() -> dict[str, Path]:
    """The modules of the distribution, by name."""
    included = CLIENT["tool"]["hatch"]["build"]["hooks"]["custom"]["sources"]
    found: dict[str, Path] = {}
    for source, target in included.items():
        path = (PACKAGING / source).resolve()
        for file in [path] if path.is_file() else sorted(path.rglob("*.py")):
            if file.suffix == ".py":
                inside = target if path.is_file() else f"{target}/{file.relative_to(path)}"
                found[inside.removesuffix(".py").removesuffix("/__init__").replace("/", ".")] = file
    return found


MODULES: Final = _modules()


def _imports(node: ast.AST, *, at_import: bool) -> Iterator[str]:
    """Names of modules that the code imports: when it is imported itself, or ever."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.module is not None
            for alias in child.names:
                inner = f"{child.module}.{alias.name}"
                is_module = (CLIENT_ROOT / f"{inner.replace('.', '/')}.py").exists()
                is_module |= (CLIENT_ROOT / inner.replace(".", "/") / "__init__.py").exists()
                yield inner if is_module else child.module
        elif (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)) or (
            at_import and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        ):
            continue
        else:
            yield from _imports(child, at_import=at_import)


@cache
def _parsed(name: str) -> ast.Module:
    return ast.parse(MODULES[name].read_text())


def _imported() -> dict[str, str]:
    """All modules that are imported at any time, each with a module that imports it."""
    return {
        imported: name for name in MODULES for imported in _imports(_parsed(name), at_import=False)
    }


def _imported_at_first() -> set[str]:
    """The modules that are imported with the public names."""
    import raftlog

    waiting = {"raftlog", *raftlog._HOMES.values()} & MODULES.keys()
    seen: set[str] = set()
    while waiting:
        name = waiting.pop()
        seen.add(name)
        if name in MODULES:
            waiting |= {*_imports(_parsed(name), at_import=True)} - seen
    return seen


def _distributions(requirements: list[str]) -> set[str]:
    return {requirement.split(">=")[0].lower() for requirement in requirements}


def _external(modules: Iterable[str]) -> set[str]:
    """Distributions of the modules that are neither raftlog's nor Python's."""
    names = {name.split(".")[0] for name in modules}
    names -= {"raftlog", *sys.stdlib_module_names}
    return {min(packages_distributions()[name]).lower().replace("_", "-") for name in names}


def test_no_module_imports_one_that_is_not_there() -> None:
    outside = {
        imported: by
        for imported, by in _imported().items()
        if imported.split(".")[0] == "raftlog" and imported not in MODULES
    }
    assert outside == {}


def test_it_depends_on_what_its_modules_import() -> None:
    project = CLIENT["project"]
    needed = _distributions(project["dependencies"])
    extras = _distributions([*chain.from_iterable(project["optional-dependencies"].values())])
    assert needed.isdisjoint(extras)
    assert _external(_imported_at_first()) <= needed
    # Imported by their names (``raftlog.registry.formats.library``).
    by_name = _distributions(project["optional-dependencies"]["schema"])
    assert _external(_imported()) == (needed | extras) - by_name


def test_the_wheel_of_the_source_distribution_contains_all_modules(tmp_path: Path) -> None:
    """``python -m build deploy/client`` builds one from the other."""
    (source,) = SdistBuilder(str(PACKAGING)).build(directory=str(tmp_path))
    with tarfile.open(source) as archive:
        archive.extractall(tmp_path, filter="data")
    unpacked = source.removesuffix(".tar.gz")
    (wheel,) = WheelBuilder(unpacked).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as built:
        names = {name for name in built.namelist() if name.endswith(".py")}
    expected = {str(file.relative_to(CLIENT_ROOT)) for file in MODULES.values()}
    assert names == expected | {"raftlog/testing.py"}


def test_its_license_is_that_of_the_whole() -> None:
    assert (PACKAGING / "LICENSE").read_bytes() == (CLIENT_ROOT / "LICENSE").read_bytes()


def test_its_bounds_are_those_of_the_whole() -> None:
    project, whole = CLIENT["project"], WHOLE["project"]
    extras = whole["optional-dependencies"]
    bounds = {*whole["dependencies"], *extras["arrow"], *extras["trace"], *extras["schema"]}
    assert {*project["dependencies"]} <= bounds
    assert {
        bound for extra in project["optional-dependencies"].values() for bound in extra
    } <= bounds
    for same in ("license", "requires-python", "dynamic"):
        assert project[same] == whole[same]


def test_all_public_names_are_there_except_the_embedded_log_and_tables() -> None:
    import raftlog

    homes = {name: home for name, home in raftlog._HOMES.items() if home not in MODULES}
    assert homes == {
        "EmbeddedLog": "raftlog.embedded",
        "Table": "raftlog.mirror.table",
        "open": "raftlog.embedded",
    }


@pytest.mark.integration
def test_names_that_are_not_there_say_what_to_install() -> None:
    """Only here: the modules that the client has not cannot be found."""
    script = (
        "import sys, raftlog\n"
        "sys.modules['raftlog.embedded'] = None\n"
        "try: raftlog.open\n"
        "except ImportError as error: print(error)\n"
    )
    noted = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert "raftlog-client" in noted.stdout
    assert "pip install -e ." in noted.stdout


@pytest.mark.nightly
@pytest.mark.integration
@pytest.mark.timeout(600)
def test_an_installed_client_produces_and_consumes(tmp_path: Path) -> None:
    """In a new virtual environment, with the dependencies from the package index."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", PACKAGING], check=True)
    script = (
        "import sys, raftlog\n"
        "with raftlog.Admin(sys.argv[1]) as admin:\n"
        "    admin.create_topics([raftlog.NewTopic('t', partitions=2)])\n"
        "with raftlog.Producer(sys.argv[1]) as producer:\n"
        "    print(producer.send('t', b'value', partition=1).result().offset)\n"
        "settings = dict(group='g', auto_offset_reset='earliest')\n"
        "with raftlog.Consumer(sys.argv[1], **settings) as consumer:\n"
        "    consumer.subscribe(['t'])\n"
        "    print([record.value for record in consumer.poll(timeout_ms=30_000)])\n"
        "    consumer.commit()\n"
        "for name in ('numpy', 'cramjam', 'uvicorn'):\n"
        "    try: __import__(name)\n"
        "    except ImportError: print('no', name)\n"
        "for use in (lambda: raftlog.open, lambda: __import__('raftlog.testing')):\n"
        "    try: use()\n"
        "    except ImportError as error: print('pip install -e .' in str(error))\n"
    )
    with cluster(directory=tmp_path / "cluster") as running:
        ran = subprocess.run(
            [python, "-c", script, running.bootstrap],
            capture_output=True, text=True, check=False, cwd=tmp_path,
        )  # fmt: skip
    assert ran.stdout.split("\n") == [
        *("0", "[b'value']", "no numpy", "no cramjam", "no uvicorn", "True", "True", ""),
    ], ran.stderr
