"""`tiespec show` in a terminal."""

from __future__ import annotations

import io
import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiespec.overview import Box, Overview, Stage, TieCost
from tiespec.report.notes import counted
from tiespec.report.sizes import bytes_said, count_said, span_said

COLOURS = ("cyan", "magenta", "green", "yellow", "blue", "red")


def overview_text(shown: Overview, width: int, color: bool = False) -> str:
    """The stages, their layers, and the ties with their cost.

    Args:
        shown (Overview): what to show.
        width (int): columns.
        color (bool): whether to write terminal colours; each tie has one.
    """
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, no_color=not color, highlight=False)
    _say(console, Text(_headline(shown)))
    hues = {tie.key: COLOURS[i % len(COLOURS)] for i, tie in enumerate(shown.ties)}
    for stage in shown.stages:
        console.print()
        _say(console, _stage_line(stage))
        if stage.boxes:
            console.print(_table(stage, hues))
    for tie in shown.ties:
        console.print()
        for line in _tie_lines(tie, hues[tie.key]):
            _say(console, line)
    for line in _finding_lines(shown):
        _say(console, line)
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


def _say(console: Console, text: Text) -> None:
    console.print(text, soft_wrap=True)


def _headline(shown: Overview) -> str:
    what = f"{counted(shown.layers, 'layer')}, {counted(len(shown.stages), 'stage')}, {counted(len(shown.ties), 'tie')}"
    return f"{shown.target}: {what} (partition: {shown.partition}, sample input: {shown.input})"


def _stage_line(stage: Stage) -> Text:
    replicated = f", {bytes_said(stage.replicated)} of it copies" if stage.replicated else ""
    what = f"{count_said(stage.parameters)} parameters, {bytes_said(stage.nbytes)}{replicated}"
    return Text.assemble((f"stage {stage.index}", "bold"), f"  {what}" if stage.boxes else "  no layers")


def _table(stage: Stage, hues: dict[str, str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    table.add_column(justify="right", no_wrap=True)
    for _ in range(4):
        table.add_column(overflow="fold")
    for box in stage.boxes:
        style = hues.get(box.key or "", "")
        tied = Text("" if box.key is None else f"tie {box.key}", style)
        table.add_row(
            f"  {span_said(box.layers)}", _name(box), count_said(box.parameters), tied, Text(" ".join(box.codes), "red")
        )
    return table


def _name(box: Box) -> Text:
    times = f" x {len(box.layers)}" if len(box.layers) > 1 else ""
    return Text(f"{box.name}{times}{f' ({box.forward_fn})' if box.forward_fn else ''}")


def _tie_lines(tie: TieCost, hue: str) -> list[Text]:
    layers, stages = ", ".join(map(str, tie.layers)), ", ".join(map(str, tie.stages))
    where = f"layers {layers}" if len(tie.layers) > 1 else f"layer {layers}"
    lines = [Text.assemble((f"tie {tie.key}", f"bold {hue}"), f"  {where}; {_within(tie, stages)}")]
    lines.append(Text(f"  lists {', '.join(tie.paths) or 'nothing'}"))
    if len(tie.stages) > 1:
        again = f"{'stage' if len(tie.stages) == 2 else 'each of the stages'} {', '.join(map(str, tie.stages[1:]))}"
        lines.append(Text(f"  copied: {bytes_said(tie.copied)} again in {again}"))
        lines.append(Text(f"  reduced in every step: {bytes_said(tie.reduced)} on each of {len(tie.stages)} stages"))
    return lines


def _within(tie: TieCost, stages: str) -> str:
    return f"stages {stages}" if len(tie.stages) > 1 else f"all in stage {stages}: nothing is copied or reduced"


def _finding_lines(shown: Overview) -> list[Text]:
    if not shown.findings:
        return [Text("\nno problems", "green")]
    heads = [Text.assemble("\n" if not i else "", (f.code, "red"), f" {f.message}") for i, f in enumerate(shown.findings)]
    return [*heads, Text(f"what to write instead: tiespec check {shlex.quote(shown.target)} --stages {len(shown.stages)}")]
