"""What the process of the console says to the server: one byte a message.

Does not depend on either.
"""

from typing import Final

TAKEN: Final = b"T"
"""It has taken one connection."""
IDLE: Final = b"I"
"""It has been unused for a while."""
