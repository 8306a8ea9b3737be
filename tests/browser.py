"""A browser for the tests of pages: Chromium, started by Playwright, or a skipped test that says what is missing."""

import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
"""Commands of an installed Chromium."""

BEYOND = """() => [...document.querySelectorAll('body *')].filter(element => {
  const box = element.getBoundingClientRect();
  if (!box.width || !box.height || box.right <= document.documentElement.clientWidth + 0.5) return false;
  for (let above = element; above; above = above.parentElement)
    if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(above).overflowX)) return false;
  return true;
}).map(element => element.outerHTML.slice(0, 120))"""
"""Elements that reach beyond the right edge of the window, other than those in boxes that scroll by themselves."""

FAINT = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const channels = color => { // any CSS colour as red, green, blue and opacity
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = canvas.getImageData(0, 0, 1, 1).data; return [r, g, b, a / 255]; };
  const over = (top, below) => [0, 1, 2].map(i => top[i] * top[3] + below[i] * (1 - top[3])).concat(1);
  const luminance = color => { const [r, g, b] = color.slice(0, 3).map(value => {
    value /= 255; return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const behind = element => { // the background of an element
    const layers = [];
    for (let above = element; above; above = above.parentElement)
      layers.push(channels(getComputedStyle(above).backgroundColor));
    const scheme = getComputedStyle(document.documentElement).colorScheme;
    const canvasColor = dark && scheme.includes('dark') ? [18, 18, 18, 1] : [255, 255, 255, 1];
    return layers.reverse().reduce((below, layer) => over(layer, below), canvasColor); };
  const found = new Set();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || ['STYLE', 'SCRIPT', 'title', 'desc'].includes(element.tagName)) continue;
    const style = getComputedStyle(element);
    if (style.visibility === 'hidden' || !element.getClientRects().length) continue;
    let opacity = 1;
    for (let above = element; above; above = above.parentElement) opacity *= getComputedStyle(above).opacity;
    const ink = channels(element.closest('svg') ? style.fill : style.color), below = behind(element);
    ink[3] *= opacity;
    const [a, b] = [luminance(over(ink, below)), luminance(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const size = parseFloat(style.fontSize), large = size >= 24 || (size >= 18.66 && style.fontWeight >= 700);
    if (ratio < (large ? 3 : 4.5))
      found.add(`${ratio.toFixed(2)} ${element.tagName}.${element.getAttribute('class')}: `
        + walker.currentNode.data.trim().slice(0, 40));
  }
  return [...found];
}"""
"""Texts with less contrast than WCAG 2.2 asks for at level AA: 4.5, or 3 for large ones."""

NAMELESS = """() => [
  ...[...document.querySelectorAll('img')].filter(image => !image.alt),
  ...[...document.querySelectorAll('svg:not([aria-hidden])')].filter(chart =>
    chart.getAttribute('role') !== 'img' || !(chart.getAttribute('aria-labelledby') || '').split(' ').every(
      id => document.getElementById(id)?.textContent.trim())),
].map(element => element.outerHTML.slice(0, 120))"""
"""Pictures without an alternative text."""

FOLD = "open => document.querySelectorAll('details').forEach(one => one.open = open)"
AT_FOLDED = "document.activeElement.tagName === 'SUMMARY' && !document.activeElement.parentElement.open"
"""Whether the keyboard is at a summary whose text is folded."""
LINKS = "() => [...document.querySelectorAll('a[href]')].map(link => link.href)"
IDS = "() => [...document.querySelectorAll('[id]')].map(element => element.id)"


def executable(playwright):
    """The path of an installed Chromium, or None."""
    found = next(filter(None, map(shutil.which, NAMES)), None)
    own = playwright.chromium.executable_path
    return found or (own if Path(own).is_file() else None)


@contextmanager
def chromium():
    """Yield a running browser, or skip the test."""
    reason = "pages are not looked at: Playwright is not installed"
    driver = pytest.importorskip("playwright.sync_api", reason=reason)
    with driver.sync_playwright() as playwright:
        path = executable(playwright)
        if path is None:
            pytest.skip(f"pages are not looked at: no Chromium (none of {', '.join(NAMES)}, and none of Playwright)")
        browser = playwright.chromium.launch(executable_path=path)
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def opened(browser, path, *, width=1280, scheme="light"):
    """Yield a page in a window of this width, after all it asked for has come.

    It fails at the end if the page wrote an error or asked for anything but files of this machine.
    """
    complaints = []
    context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    page.on("console", lambda message: complaints.append(message.text) if message.type != "log" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "request",
        lambda request: None if request.url.startswith(("file:", "data:")) else complaints.append(request.url),
    )
    page.goto(path.resolve().as_uri())
    try:
        yield page
    finally:
        context.close()
    assert not complaints
