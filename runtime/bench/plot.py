"""A picture of a benchmark: which part of the requests was served within which time, as one SVG file without any outside part."""

from collections.abc import Mapping, Sequence
from html import escape

from branchpoint.runtime.bench.figures import percentile
from branchpoint.runtime.bench.timing import Timing

__all__ = ["plot_svg"]

_WIDTH, _HEIGHT, _LEFT, _TOP, _BETWEEN = 360, 200, 56, 48, 76
_STEPS = 101


def plot_svg(timings: Sequence[Timing], title: str) -> str:
    """The distributions of time to first token, time an output token and whole request, one beside the other."""
    good = [timing for timing in timings if not timing.error]
    panels: Mapping[str, list[float]] = {
        "time to first token": [timing.first for timing in good],
        "time an output token": [timing.each for timing in good if timing.each is not None],
        "whole request": [timing.ended - timing.began for timing in good],
    }
    drawn = [_panel(name, values, place) for place, (name, values) in enumerate(panels.items()) if values]
    width, height = _LEFT + len(panels) * (_WIDTH + _BETWEEN), _TOP + _HEIGHT + 56
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="12">'
    back = f'<rect width="{width}" height="{height}" fill="white"/><text x="{_LEFT}" y="20" font-size="14">{escape(title)}</text>'
    return "\n".join([head, back, *drawn, "</svg>\n"])


def _panel(name: str, values: Sequence[float], place: int) -> str:
    most = max(values) * 1000 or 1.0
    left, bottom = _LEFT + place * (_WIDTH + _BETWEEN), _TOP + _HEIGHT
    points = []
    for step in range(_STEPS):
        percent = 100 * step / (_STEPS - 1)
        x = left + _WIDTH * percentile(values, percent) * 1000 / most
        points.append(f"{x:.1f},{bottom - _HEIGHT * percent / 100:.1f}")
    parts = [f'<text x="{left}" y="{_TOP - 8}">{escape(name)}, ms</text>']
    for percent in (0, 50, 90, 100):
        y = bottom - _HEIGHT * percent / 100
        parts.append(f'<line x1="{left}" y1="{y}" x2="{left + _WIDTH}" y2="{y}" stroke="#ddd"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end">{percent} %</text>')
    for part in range(5):
        x = left + _WIDTH * part / 4
        parts.append(f'<text x="{x}" y="{bottom + 18}" text-anchor="middle">{most * part / 4:.4g}</text>')
    parts.append(f'<polyline fill="none" stroke="#1f6feb" stroke-width="2" points="{" ".join(points)}"/>')
    return "\n".join(parts)
