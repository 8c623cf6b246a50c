"""Time limit after which a test takes a wait for a hang.

It is far beyond the slowness of any machine, so that speed does not matter. A wait that ends sooner
costs nothing.
"""

HANG_SECONDS = 120.0
