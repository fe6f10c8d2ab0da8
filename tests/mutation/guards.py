"""All guards, in the order in which they are judged."""

from __future__ import annotations

from typing import Final

from tests.mutation import guards_storage
from tests.mutation.guard import Guard

GUARDS: Final[tuple[Guard, ...]] = (*guards_storage.GUARDS,)
