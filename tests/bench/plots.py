"""Plots as SVG, without a library: lines over one pair of axes, and bars; for light and dark pages."""

from collections.abc import Sequence
from math import ceil, floor, log10
from xml.sax.saxutils import escape

from tests.bench.figures import Curve

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 40, 50
BAR = 26
COLOURS = ("#2563eb", "#b45309", "#15803d", "#be123c")
STYLE = """<style>
text { font: 12px system-ui, sans-serif; fill: #333 } .title { font-size: 14px; font-weight: 600 }
.axis { stroke: #888 } .grid { stroke: #8884 } path { fill: none; stroke-width: 2 }
@media (prefers-color-scheme: dark) { text { fill: #ddd } }
</style>"""


def _frame(title: str, height: int, parts: Sequence[str]) -> str:
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">'
    shown = escape(title)
    return "\n".join([head, f"<title>{shown}</title>", STYLE, _text(LEFT, 20, shown, "title"), *parts, "</svg>"]) + "\n"


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{kind}>{text}</text>'


def ticks(most: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 up to the first one that is not below the most."""
    if most <= 0:
        return [0.0, 1.0]
    rough = most / wanted
    size = 10 ** floor(log10(rough))
    step = next(each * size for each in (1, 2, 5, 10) if each * size >= rough)
    return [number * step for number in range(ceil(most / step) + 1)]


def lines(title: str, curves: Sequence[Curve], x_name: str, y_name: str, *, log_x: bool = False) -> str:
    """Curves over common axes; the y axis begins at 0, and so does the x axis unless it is logarithmic."""
    points = [point for curve in curves for point in curve.points]
    across = ticks(max(x for x, _ in points))
    up = ticks(max(y for _, y in points))
    low, high = (log10(min(x for x, _ in points)), log10(max(x for x, _ in points))) if log_x else (0.0, across[-1])

    def place(x: float, y: float) -> tuple[float, float]:
        share = ((log10(x) if log_x else x) - low) / ((high - low) or 1)
        width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return LEFT + share * width, TOP + (1 - y / up[-1]) * height

    parts = []
    for tick in up:
        _, y = place(10**low if log_x else 0, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(_text(LEFT - 8, y + 4, f"{tick:,.6g}", anchor="end"))
    for tick in sorted({x for x, _ in points}) if log_x else across:
        x, y = place(tick, 0)
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y:.1f}" y2="{y + 4:.1f}"/>')
        parts.append(_text(x, y + 18, f"{tick:,.6g}", anchor="middle"))
    parts.append(_text(WIDTH - RIGHT, HEIGHT - 8, escape(x_name), anchor="end"))
    parts.append(_text(LEFT, 36, escape(y_name)))
    for number, curve in enumerate(curves):
        path = " L".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in curve.points))
        colour = COLOURS[number % len(COLOURS)]
        parts.append(f'<path d="M{path}" stroke="{colour}"/>')
        if len(curves) > 1:
            parts.append(f'<text x="{WIDTH - RIGHT}" y="{20 + 14 * number}" text-anchor="end" fill="{colour}">')
            parts.append(f"{escape(curve.name)}</text>")
    return _frame(title, HEIGHT, parts)


def bars(title: str, values: Sequence[tuple[str, float]], unit: str) -> str:
    most = max(value for _, value in values) or 1
    parts = []
    for number, (name, value) in enumerate(values):
        y = TOP + number * BAR
        width = (WIDTH - LEFT - RIGHT - 120) * value / most
        parts.append(_text(LEFT - 8, y + 14, escape(name), anchor="end"))
        parts.append(f'<rect x="{LEFT}" y="{y}" width="{width:.1f}" height="{BAR - 8}" fill="{COLOURS[0]}"/>')
        parts.append(_text(LEFT + width + 6, y + 14, f"{value:,.0f} {escape(unit)}"))
    return _frame(title, TOP + BAR * len(values) + 10, parts)
