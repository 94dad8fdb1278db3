"""`tiespec show` as a picture: stages as columns, layers as boxes, ties as arcs."""

from __future__ import annotations

import io
import math
from dataclasses import dataclass
from typing import Any, Literal

from matplotlib import colormaps, rc_context
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch, Rectangle
from matplotlib.path import Path

from tiespec.overview import Box, Overview, Stage, TieCost
from tiespec.report.notes import counted
from tiespec.report.routes import Route, lanes, routes
from tiespec.report.sizes import bytes_said, count_said, middle_cut, span_said

MARK = b"tiespec show"
"""Is in every picture's metadata: a file with it may be overwritten."""
MOST_LEGEND = 12
"""Ties in the legend; more of them are counted."""
BOX, GAP, TOP = 0.72, 0.06, 1.07
"""Width of a box in a column of width 1; between boxes, and where the first begins, in inches."""
FINDING = "#c62828"


@dataclass(frozen=True)
class Lane:
    """Where the lanes are, in inches from the top."""

    top: float
    step: float


@dataclass(frozen=True)
class _Place:
    """A drawn box: left edge, top and height."""

    left: float
    top: float
    height: float

    @property
    def middle(self) -> float:
        return self.top + self.height / 2


def picture(shown: Overview, format: Literal["svg", "png"]) -> bytes:
    """Draw a pipeline.

    Args:
        shown (Overview): what to draw.
        format: of the picture; the same input gives the same bytes.
    """
    metadata: dict[str, Any] = {"Title": f"{MARK.decode()} {shown.target}"}
    if format == "svg":
        metadata["Date"] = None
    out = io.BytesIO()
    with rc_context({"svg.hashsalt": "tiespec", "font.size": 8, "font.family": "DejaVu Sans"}):
        _draw(shown).savefig(out, format=format, dpi=150, metadata=metadata)
    return out.getvalue()


def _draw(shown: Overview) -> Figure:
    heights = [[_height(box, shown) for box in stage.boxes] for stage in shown.stages]
    boxes_end = TOP + max(sum(column) + GAP * len(column) for column in heights)
    column, found = _column_width(len(shown.stages)), routes(shown.ties, _stages(shown))
    lane = Lane(boxes_end + 0.12, 0.09)
    legend_top = lane.top + lane.step * lanes(found) + 0.2
    lines = min(len(shown.ties), MOST_LEGEND) + (len(shown.ties) > MOST_LEGEND) + bool(shown.findings)
    width, height = max(6.0, column * len(shown.stages) + 0.4), legend_top + 0.2 * lines + 0.1
    figure, axes = _canvas(width, height, column)
    axes.text(0, 0.25, _title(shown, int(width * 11)), fontsize=10, fontweight="bold", va="center")
    hues = _hues(shown.ties)
    places: dict[int, _Place] = {}
    for stage, sizes in zip(shown.stages, heights, strict=True):
        places |= _draw_stage(axes, stage, sizes, hues, column)
    for i, route in enumerate(found):
        _draw_route(axes, route, places, hues[route.key], lane, i)
    _draw_legend(axes, shown, hues, legend_top, column, int(width * 14))
    return figure


def _canvas(width: float, height: float, column: float) -> tuple[Figure, Any]:
    """Across, one unit is a column; down, an inch."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0.2 / width, 0.0, 1 - 0.4 / width, 1.0))
    axes.set_axis_off()
    axes.set_xlim(0, (width - 0.4) / column)
    axes.set_ylim(height, 0)
    return figure, axes


def _stages(shown: Overview) -> dict[int, int]:
    return {layer: stage.index for stage in shown.stages for box in stage.boxes for layer in box.layers}


def _title(shown: Overview, width: int) -> str:
    what = f"{counted(shown.layers, 'layer')}, {counted(len(shown.stages), 'stage')}, {counted(len(shown.ties), 'tie')}"
    return f"{middle_cut(shown.target, max(20, width - len(what)))}: {what}"


def _column_width(stages: int) -> float:
    """Inches: wide for a few stages, so that names fit; narrow for many."""
    return 2.6 if stages <= 4 else 2.1 if stages <= 8 else 1.8


def _height(box: Box, shown: Overview) -> float:
    """Inches: by the square root of the parameters, so that a large table does not make a layer norm vanish."""
    largest = max((b.parameters for stage in shown.stages for b in stage.boxes), default=1)
    return 0.3 + 0.9 * math.sqrt(box.parameters / max(1, largest))


def _hues(ties: list[TieCost]) -> dict[str, Any]:
    palette = colormaps["tab10" if len(ties) <= 10 else "tab20"]
    return {tie.key: palette(i % palette.N) for i, tie in enumerate(ties)}


def _draw_stage(axes: Any, stage: Stage, sizes: list[float], hues: dict[str, Any], column: float) -> dict[int, _Place]:
    left, top = stage.index + (1 - BOX) / 2, TOP
    axes.text(left, 0.62, f"stage {stage.index}", fontweight="bold", va="center")
    unit = " parameters" if column > 1.5 else ""
    copies = f"{bytes_said(stage.replicated)} copies" if stage.replicated else ""
    axes.text(left, 0.79, f"{count_said(stage.parameters)}{unit}", va="center")
    axes.text(left, 0.95, copies, va="center", color="#616161")
    places: dict[int, _Place] = {}
    for box, height in zip(stage.boxes, sizes, strict=True):
        place = _Place(left, top, height)
        _draw_box(axes, box, place, hues, int(BOX * column * 12.5))
        places |= dict.fromkeys(box.layers, place)
        top += height + GAP
    return places


def _draw_box(axes: Any, box: Box, place: _Place, hues: dict[str, Any], width: int) -> None:
    hue = hues.get(box.key or "")
    edge = FINDING if box.codes else hue or "#9e9e9e"
    fill = (*hue[:3], 0.22) if hue else "#f5f5f5"
    line = 1.8 if box.codes else 0.9
    axes.add_patch(Rectangle((place.left, place.top), BOX, place.height, facecolor=fill, edgecolor=edge, linewidth=line))
    times = f" x {len(box.layers)}" if len(box.layers) > 1 else ""
    number = f"{span_said(box.layers)}  "
    through = f" ({box.forward_fn.rpartition('.')[2]})" if box.forward_fn else ""
    name = middle_cut(box.name + through, max(4, width - len(number) - len(times)))
    axes.text(place.left + 0.03, place.top + 0.15, f"{number}{name}{times}", va="center")
    below = [] if not box.codes else [(middle_cut(" ".join(box.codes), width), FINDING)]
    if place.height > 0.45 or not box.codes:
        below.append((count_said(box.parameters), "#616161"))
    for i, (text, color) in enumerate(below):
        if place.height >= 0.45 + 0.16 * i:
            axes.text(place.left + 0.03, place.top + 0.33 + 0.16 * i, text, va="center", color=color, fontsize=7)
    if box.codes and place.height < 0.45:
        axes.text(place.left + BOX - 0.03, place.top + 0.15, "!", va="center", ha="right", color=FINDING, fontweight="bold")


def _draw_route(axes: Any, route: Route, places: dict[int, _Place], hue: Any, lane: Lane, index: int) -> None:
    """An arc where the layers are in one stage or in neighbouring ones; else down into a lane and up again."""
    a, b = places[route.start], places[route.end]
    style = {"edgecolor": hue, "linewidth": 1.6, "alpha": 0.9, "zorder": 3, "capstyle": "round"}
    if a == b:
        return
    if route.lane is None:
        inside = route.stages[0] == route.stages[1]
        end = (b.left + (BOX if inside else 0), b.middle)
        bend = "arc3,rad=-0.5" if inside else "arc3,rad=0.15"
        axes.add_patch(FancyArrowPatch((a.left + BOX, a.middle), end, arrowstyle="-", connectionstyle=bend, **style))
        return
    shift = (1 - BOX) * (0.2 + 0.6 * (index % 7) / 7)
    left, right, y = a.left + BOX + shift, b.left - (1 - BOX) + shift, lane.top + lane.step * route.lane
    corners = [(a.left + BOX, a.middle), (left, a.middle), (left, y), (right, y), (right, b.middle), (b.left, b.middle)]
    axes.add_patch(PathPatch(_rounded(corners, 0.05, 0.08), fill=False, **style))


def _rounded(corners: list[tuple[float, float]], rx: float, ry: float) -> Path:
    """A line along corners, each of them an arc."""
    points, codes = [corners[0]], [Path.MOVETO]
    for before, corner, after in zip(corners, corners[1:], corners[2:], strict=False):
        points += [_toward(corner, before, rx, ry), corner, _toward(corner, after, rx, ry)]
        codes += [Path.LINETO, Path.CURVE3, Path.CURVE3]
    return Path([*points, corners[-1]], [*codes, Path.LINETO])


def _toward(corner: tuple[float, float], other: tuple[float, float], rx: float, ry: float) -> tuple[float, float]:
    """A point a little way from a corner; at most half of the way."""
    dx, dy = other[0] - corner[0], other[1] - corner[1]
    return corner[0] + math.copysign(min(rx, abs(dx) / 2), dx), corner[1] + math.copysign(min(ry, abs(dy) / 2), dy)


def _draw_legend(axes: Any, shown: Overview, hues: dict[str, Any], top: float, column: float, width: int) -> None:
    ties = sorted(shown.ties, key=lambda tie: len(tie.stages) == 1)
    lines: list[tuple[str, Any]] = [(_tie_said(tie, width), hues[tie.key]) for tie in ties[:MOST_LEGEND]]
    if len(ties) > MOST_LEGEND:
        lines.append((f"and {len(ties) - MOST_LEGEND} more ties", None))
    if shown.findings:
        codes = ", ".join(sorted({f.code for f in shown.findings}))
        lines.append((f"{counted(len(shown.findings), 'finding')} ({codes}): tiespec check says more", FINDING))
    for i, (text, color) in enumerate(lines):
        y = top + 0.2 * i
        if color is not None:
            axes.add_patch(Rectangle((0, y - 0.06), 0.16 / column, 0.12, facecolor=color))
        axes.text(0.25 / column, y, text, va="center")


def _tie_said(tie: TieCost, width: int) -> str:
    stages = f"stages {_few(tie.stages)}" if len(tie.stages) > 1 else f"stage {tie.stages[0]} alone"
    cost = f": {bytes_said(tie.copied)} copied, {bytes_said(tie.reduced)} reduced per step" if len(tie.stages) > 1 else ""
    text = f"{'layers' if len(tie.layers) > 1 else 'layer'} {_few(tie.layers)}, {stages}{cost}"
    return f"{middle_cut(tie.key, max(8, width - len(text)))}  {text}"


def _few(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers)) if len(numbers) <= 4 else f"{numbers[0]}, {numbers[1]} ... {numbers[-1]}"
