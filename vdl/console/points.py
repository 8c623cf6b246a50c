"""Points of the plots, as the server sends them to its console.

Does not depend on how they are measured or shown.
"""

from __future__ import annotations

from typing import Final

INTERVAL_MS: Final = 2_000
POINTS_MAX: Final = 300

Point = dict[str, float | None]
"""Values by name, and `ms`, the wall clock; None where nothing was measured."""
