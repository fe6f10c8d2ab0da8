"""What the fixtures in ``conftest.py`` need, and the types of what they give."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

NewTopicFunction = Callable[..., str]
LoadFunction = Callable[..., "DataFrame"]

NO_JAVA = "Spark needs Java: install a JDK 17 (Debian: apt install openjdk-17-jre)"


def has_java() -> bool:
    """Whether Spark would find a Java, on the path or by JAVA_HOME."""
    java = os.path.join(os.environ.get("JAVA_HOME", ""), "bin", "java")
    return shutil.which("java") is not None or os.path.exists(java)
