"""Messages of the console's process to the server: one byte each.

Does not depend on either.
"""

from typing import Final

TAKEN: Final = b"T"
"""It has taken one connection."""
IDLE: Final = b"I"
"""It has been unused for a while."""
