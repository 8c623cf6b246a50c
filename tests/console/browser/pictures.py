"""Takes the pictures of docs/console.md: `python -m tests.console.browser.pictures ORIGIN`."""

import sys
from pathlib import Path

from tests.console.browser.chromium import chromium
from tests.console.browser.visitor import visiting

PICTURES = Path(__file__).resolve().parents[3] / "docs" / "pictures"
SHOWN = {
    "console-overview": ((), {}, {}),
    "console-records": (("topics", "orders", "records"), {"from": 0, "count": 10}, {}),
    "console-group": (("groups", "billing"), {}, {"is_dark": True}),
    "console-phone": (("topics", "orders"), {}, {"is_phone": True}),
}
SETTLED_MS = 20_000
"""Time until the plots have some points."""


def main(origin: str) -> None:
    with chromium() as browser:
        for name, (path, params, look) in SHOWN.items():
            with visiting(browser, origin, **look) as visitor:
                visitor.open(*path, **params)
                if name == "console-records":
                    visitor.page.locator(".turn").first.click()
                else:
                    visitor.page.wait_for_timeout(SETTLED_MS)
                visitor.page.screenshot(path=PICTURES / f"{name}.png")


if __name__ == "__main__":
    main(sys.argv[1])
