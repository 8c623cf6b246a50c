"""Takes the pictures of docs/console.md.

`python -m tests.console.browser.pictures ORIGIN`: single pages of a set that runs.

`python -m tests.console.browser.pictures sheets`: every page, small, on one picture for each state:
three servers, then one of them killed. `… sheets ORIGIN`: the pages of the set there, which has
many partitions. Prints the first paint of pages; a request to another host is an error.
"""

import sys
from contextlib import ExitStack
from io import BytesIO
from pathlib import Path
from statistics import median

from PIL import Image
from playwright.sync_api import Browser

from tests.console.browser.chromium import chromium
from tests.console.browser.console_set import (
    client_settings,
    console_set,
    consuming,
    fill,
    make_topics,
)
from tests.console.browser.test_weight import FIRST_PAINT
from tests.console.browser.visitor import SCREEN, visiting

PICTURES = Path(__file__).resolve().parents[3] / "docs" / "pictures"
SHOWN = {
    "console-overview": ((), {}, {}),
    "console-records": (("topics", "orders", "records"), {"from": 0, "count": 10}, {}),
    "console-group": (("groups", "billing"), {}, {"is_dark": True}),
    "console-phone": (("topics", "orders"), {}, {"is_phone": True}),
}
SETTLED_MS = 20_000
"""Time until the plots have some points."""
PAGES = (
    (), ("servers",), ("servers", "1"), ("topics",), ("topics", "orders"),
    ("topics", "orders", "records"), ("topics", "orders", "produce"), ("groups",),
    ("groups", "billing"), ("security",), ("problems",), ("explain", "partition", "orders", "0"),
)  # fmt: skip
COLUMNS = 4
SMALL = (480, 300)
GAP = 8
QUALITY = 60


def singles(origin: str) -> None:
    with chromium() as browser:
        for name, (path, params, look) in SHOWN.items():
            with visiting(browser, origin, **look) as visitor:
                visitor.open(*path, **params)
                if name == "console-records":
                    visitor.page.locator(".turn").first.click()
                else:
                    visitor.page.wait_for_timeout(SETTLED_MS)
                visitor.page.screenshot(path=PICTURES / f"{name}.png")


def sheet(browser: Browser, origin: str, name: str) -> None:
    """Take every page at an origin, and put them on one picture."""
    width, height = SMALL
    rows = -(-len(PAGES) // COLUMNS)
    whole = Image.new(
        "RGB", (COLUMNS * (width + GAP) + GAP, rows * (height + GAP) + GAP), "#888888"
    )
    paints = []
    for number, path in enumerate(PAGES):
        with visiting(browser, origin) as visitor:
            visitor.open(*path)
            paints.append(visitor.page.evaluate(FIRST_PAINT))
            taken = Image.open(BytesIO(visitor.page.screenshot())).convert("RGB")
        assert taken.size == (SCREEN["width"], SCREEN["height"])
        row, column = divmod(number, COLUMNS)
        at = GAP + column * (width + GAP), GAP + row * (height + GAP)
        whole.paste(taken.resize(SMALL, Image.Resampling.LANCZOS), at)
    file = PICTURES / f"{name}.webp"
    whole.save(file, quality=QUALITY, method=6)
    print(
        f"{name}: {len(PAGES)} pages, first paint {min(paints)} to {max(paints)} ms, median "
        f"{median(paints):.0f} ms, no request elsewhere; picture {file.stat().st_size} bytes",
        flush=True,
    )


def sheets() -> None:
    with chromium() as browser, console_set("console-pictures") as servers, ExitStack() as members:
        settings = client_settings(servers)
        make_topics(settings, {"orders": 12, "empty": 1, "team.a": 3, "team.b": 2})
        fill(settings, "orders")
        members.enter_context(consuming(settings, "orders", "billing", "till-1"))
        sheet(browser, servers.origin(1), "console-pages-three-servers")
        servers.kill(3)
        with visiting(browser, servers.origin(1)) as visitor:
            visitor.open()
            visitor.wait_for("2 of 3")
        sheet(browser, servers.origin(1), "console-pages-dead-server")


if __name__ == "__main__":
    if sys.argv[1:] == ["sheets"]:
        sheets()
    elif sys.argv[1] == "sheets":
        with chromium() as browser:
            sheet(browser, sys.argv[2], "console-pages-many-partitions")
    else:
        singles(sys.argv[1])
