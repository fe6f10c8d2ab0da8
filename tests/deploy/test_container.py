"""The container image, built from the repository and run as deployments run it.

Needs root, buildah and the base image. The image runs without a container engine, in namespaces of
the kernel: its root file system is read-only, its user has no capabilities, and its network is its
loopback interface.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from raftlog.testing import wait_until
from tests.tidy.sources import ROOT

# Base image, where the registry of the Dockerfile is not reachable.
PYTHON_IMAGE: Final = os.environ.get("RAFTLOG_PYTHON_IMAGE", "")
IMAGE: Final = "localhost/raftlog-test"
# Of the process that becomes the container: mounts, then the user of the image, and its command.
START: Final = """
set -e
ip link set lo up
mount --bind "$1" "$1"
mount -o remount,bind,ro "$1"
mount --bind "$2" "$1/var/lib/raftlog"
mount -t tmpfs tmpfs "$1/tmp"
mount -t proc proc "$1/proc"
mount --rbind /dev "$1/dev"
root=$1; shift 2
exec chroot "$root" "$@"
"""
NEEDED: Final = ("buildah", "unshare", "nsenter", "ip")
MISSING: Final = [name for name in NEEDED if not shutil.which(name)]

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.integration,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(MISSING), reason=f"there is no {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root"),
]


def buildah(*arguments: str) -> str:
    ran = subprocess.run(["buildah", *arguments], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-2_000:] + ran.stderr[-2_000:]
    return ran.stdout.strip()


@pytest.fixture(scope="module")
def image() -> str:
    """The image, as an engine would build it."""
    base = [f"--build-arg=PYTHON_IMAGE={PYTHON_IMAGE}"] if PYTHON_IMAGE else []
    name = PYTHON_IMAGE or next(
        line.partition("=")[2]
        for line in (ROOT / "deploy/container/Dockerfile").read_text().splitlines()
        if line.startswith("ARG PYTHON_IMAGE=")
    )
    pulled = subprocess.run(
        ["buildah", "pull", "--policy", "missing", name],
        capture_output=True,
        text=True,
        check=False,
    )
    if pulled.returncode:
        pytest.skip(
            f"the base image {name} is not available; name one in RAFTLOG_PYTHON_IMAGE: "
            f"{pulled.stderr.strip()[-300:]}"
        )
    dockerfile = str(ROOT / "deploy/container/Dockerfile")
    # The format of OCI has no health check.
    options = ["--isolation=chroot", "--format=docker", *base, "-t", IMAGE, "-f", dockerfile]
    buildah("bud", *options, str(ROOT))
    return IMAGE


class Container:
    """A container in its namespaces, with the settings of its image."""

    def __init__(self, image: str, data: Path) -> None:
        settings: dict[str, Any] = json.loads(buildah("inspect", "--type=image", image))["Docker"]
        self.settings = settings["config"]
        user, _, group = self.settings["User"].partition(":")
        self.user = int(user)
        os.chown(data, int(user), int(group))
        # As engines do it: no capability, and none to gain.
        self._as_user = [
            *("setpriv", f"--reuid={user}", f"--regid={group}", "--clear-groups"),
            *("--bounding-set=-all", "--inh-caps=-all", "--no-new-privs"),
            *("env", "-i", *self.settings["Env"]),
        ]
        self._name = buildah("from", image)
        command = [*self.settings["Entrypoint"], *self.settings["Cmd"]]
        self.process = subprocess.Popen(
            [
                *("unshare", "--mount", "--net", "--pid", "--fork", "--kill-child=SIGKILL"),
                *("bash", "-c", START, "start", buildah("mount", self._name), str(data)),
                *self._as_user,
                *command,
            ],
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def first_process(self) -> str:
        """The id of the container's first process, outside of it; "" before it has started."""
        own = self.process.pid
        return Path(f"/proc/{own}/task/{own}/children").read_text().strip()

    def run(self, *command: str, text: str = "") -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as its user."""
        return subprocess.run(
            [
                "nsenter",
                "-t",
                self.first_process,
                "--mount",
                "--net",
                "--root",
                "--wd",
                *self._as_user,
                *command,
            ],
            input=text,
            capture_output=True,
            text=True,
            check=False,
        )

    def is_healthy(self) -> bool:
        kind, *command = self.settings["Healthcheck"]["Test"]
        assert kind == "CMD"
        assert self.process.poll() is None, self.process.communicate()[1]
        return bool(self.first_process) and self.run(*command).returncode == 0

    def stop(self) -> int:
        """Send the stop signal of the image to its first process. Returns the exit status."""
        assert self.settings["StopSignal"] == "SIGTERM"
        os.kill(int(self.first_process), signal.SIGTERM)
        return self.process.wait(60)

    def remove(self) -> None:
        with self.process:  # closes its standard error
            self.process.kill()
        buildah("rm", self._name)


@pytest.fixture
def container(image: str, tmp_path: Path) -> Iterator[Container]:
    made = Container(image, tmp_path)
    try:
        yield made
    finally:
        made.remove()


def test_the_image_serves_clients_without_privileges(container: Container) -> None:
    wait_until(container.is_healthy, what="a healthy container", timeout_s=60)
    root_is_read_only = container.run("touch", "/opt/raftlog/written")
    assert "Read-only file system" in root_is_read_only.stderr
    identity = container.run("cat", "/proc/1/status").stdout
    status = dict(line.split(":\t", 1) for line in identity.splitlines() if ":\t" in line)
    assert (status["Name"], status["Uid"].split()[0]) == ("tini", str(container.user))
    assert int(status["CapEff"], 16) == int(status["CapBnd"], 16) == 0
    assert status["NoNewPrivs"] == "1"
    created = container.run("raftlog", "topic", "create", "clicks")
    assert created.returncode == 0, created.stderr
    produced = container.run("raftlog", "produce", "clicks", text="one\ntwo\n")
    assert produced.returncode == 0, produced.stderr
    read = container.run(*shlex.split("raftlog tail clicks -o earliest -n 2 --json"))
    assert [json.loads(line)["value"] for line in read.stdout.splitlines()] == ["one", "two"]
    assert container.stop() == 0
