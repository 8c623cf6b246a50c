"""How long a wait lasts before a test takes it for a hang.

Far beyond any machine's slowness, so that how fast the machine is decides nothing. A wait that ends
sooner costs nothing.
"""

HANG_SECONDS = 120.0
