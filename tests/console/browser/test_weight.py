"""Bytes of the console, its first paint, and the contrast of its colours."""

import re
from pathlib import Path

from tests.console.browser.visitor import HANG_MS

STATIC = Path(__file__).resolve().parents[3] / "vdl" / "console" / "static"
BYTES_MAX = 150_000
FIRST_PAINT = """() => new Promise((found) => new PerformanceObserver((list) => {
    const paint = list.getEntries().find((one) => one.name === 'first-contentful-paint');
    if (paint) found(Math.round(paint.startTime));
}).observe({ type: 'paint', buffered: true }))"""
SENT = """['navigation', 'resource'].flatMap((kind) => performance.getEntriesByType(kind))
    .filter((one) => !one.name.includes('/api/'))
    .reduce((sum, one) => sum + one.encodedBodySize, 0)"""
TEXTS = ("text", "soft", "accent", "ok", "warn", "bad")
GROUNDS = ("ground", "surface", "raised")
MARKS = (
    ("ok", "ok-ground"),
    ("warn", "warn-ground"),
    ("bad", "bad-ground"),
    ("on-accent", "accent"),
)
CONTRAST_MIN = 4.5
"""Ratio of text and its background (WCAG 2.2, 1.4.3)."""


def files():
    return [path for path in sorted(STATIC.rglob("*")) if path.is_file()]


def test_files_are_light_and_whole():
    """Nothing is fetched from elsewhere, nothing stands inline, and it stays small."""
    assert sum(path.stat().st_size for path in files()) <= BYTES_MAX
    for path in files():
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(", text
        ), path
        if path.suffix in {".html", ".css"}:
            assert not re.search(r"//[a-z]|@import|url\(|<style|style=|\son[a-z]+=", text), path


def test_page_preloads_every_module():
    """A module that is not listed is found one round trip later."""
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    listed = set(re.findall(r'(?:src|href)="([\w/]+\.js)"', page))
    assert listed == {str(path.relative_to(STATIC)) for path in files() if path.suffix == ".js"}


def test_first_paint_is_measured(visit, record_property):
    """Figures for docs/console.md; they fail nothing."""
    visitor = visit()
    visitor.page.set_default_timeout(HANG_MS)
    visitor.open()
    figures = {
        "bytes of files": sum(path.stat().st_size for path in files()),
        "bytes sent": visitor.page.evaluate(SENT),
        "files": len(files()),
        "first paint, ms": visitor.page.evaluate(FIRST_PAINT),
        "all loaded, ms": visitor.page.evaluate(
            "Math.round(performance.getEntriesByType('navigation')[0].loadEventEnd)"
        ),
    }
    print(figures)
    for name, value in figures.items():
        record_property(name, value)


def luminance(colour):
    digits = colour.lstrip("#")
    digits = "".join(2 * one for one in digits) if len(digits) == 3 else digits
    parts = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [one / 12.92 if one <= 0.04045 else ((one + 0.055) / 1.055) ** 2.4 for one in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def test_colours_of_text_have_contrast():
    """Each colour of text on each background, in both schemes."""
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    schemes = [
        dict(re.findall(r"--([\w-]+): (#\w+);", block))
        for block in re.findall(r":root[^{]*\{([^}]*)\}", style)
    ]
    assert len(schemes) == 3
    assert schemes[1] == schemes[2], "the switch and the system have the same dark colours"
    pairs = [(text, ground) for text in TEXTS for ground in GROUNDS] + list(MARKS)
    weak = [
        (at, text, ground)
        for at, scheme in enumerate(schemes)
        for text, ground in pairs
        if contrast(scheme[text], scheme[ground]) < CONTRAST_MIN
    ]
    assert weak == []
