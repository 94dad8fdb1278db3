"""A spec for people."""

from __future__ import annotations

import io
import re
import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from tiespec.report.notes import Said, counted
from tiespec.spec import SpecParameter, SpecProposal, SpecTie, TieSpec


def spec_text(spec: TieSpec, layers: int, input: str, said: Said, width: int, color: bool = False) -> str:
    """The ties of a spec, what is listed, what is left out and why.

    Args:
        spec (TieSpec): the spec.
        layers (int): number of layers; 0 for a plain module.
        input (str): where the sample input came from.
        said (Said): notes and remarks.
        width (int): columns.
        color (bool): whether to write terminal colours.
    """
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=color, no_color=not color, highlight=False)
    _say(console, Text(_headline(spec, layers, input)))
    for tie in spec.ties:
        console.print()
        _print_tie(console, tie, said)
    for proposal in spec.proposals or ():
        console.print()
        _print_proposal(console, proposal, spec.target)
    for note in said.notes:
        _say(console, Text(f"\nnote: {note}"))
    return "\n".join(line.rstrip() for line in out.getvalue().split("\n"))


def _say(console: Console, text: Text) -> None:
    """A sentence, not folded: the terminal does that, and a path stays whole."""
    console.print(text, soft_wrap=True)


def _headline(spec: TieSpec, layers: int, input: str) -> str:
    if not layers:
        return f"{spec.target}: a module, {counted(len(spec.ties[0].parameters), 'parameter')} listed"
    return f"{spec.target}: {counted(layers, 'layer')}, {counted(len(spec.ties), 'tie')} (sample input: {input})"


def is_report(text: str) -> bool:
    """Whether a text begins with the headline of a report."""
    first = text.partition("\n")[0]
    return re.search(r": (a module, \d+ parameters? listed|\d+ layers?, \d+ ties? \(sample input: .*\))$", first) is not None


def _print_tie(console: Console, tie: SpecTie, said: Said) -> None:
    where = f"  layers {', '.join(str(i) for i in tie.layers)}" if len(tie.layers) > 1 else ""
    _say(console, Text.assemble((tie.key, "bold"), f"{where}  ({tie.typename})"))
    if tie.tied_weight_attr is not None:
        _say(console, Text(f"  tied_weight_attr = {_list(tie.tied_weight_attr)}", "green"))
    for layer, names in (tie.by_layer or {}).items():
        _say(console, Text(f"  tied_weight_attr of layer {layer} = {_list(names)}", "green"))
    if tie.parameters or tie.left_out:
        console.print(_table(tie))
    for remark in said.about(tie.key):
        _say(console, Text.assemble(("  warning: ", "yellow"), remark["message"]))
        _say(console, Text(f"  help: {remark['help']}"))


def _list(names: list[str]) -> str:
    return "[" + ", ".join(f'"{name}"' for name in names) + "]"


def _table(tie: SpecTie) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), show_header=False, pad_edge=False)
    for _ in range(4):
        table.add_column(overflow="fold")
    for parameter in (*tie.parameters, *tie.left_out):
        verdict = _verdict(parameter, "tied" if len(tie.layers) > 1 else "listed")
        table.add_row(Text(f"  {parameter.path}"), Text(_shape(parameter)), Text(parameter.dtype), verdict)
    return table


def _shape(parameter: SpecParameter) -> str:
    return "x".join(str(size) for size in parameter.shape) or "scalar"


def _verdict(parameter: SpecParameter, listed: str) -> Text:
    return Text(listed, "green") if parameter.reason is None else Text(f"left out: {parameter.reason}", "dim")


def _print_proposal(console: Console, proposal: SpecProposal, target: str) -> None:
    shared = ", ".join(f"{' and '.join(names)} of layer {layer}" for layer, names in proposal.by_layer.items())
    fact = f"{shared}: one Parameter and no key, so stock DeepSpeed ties nothing"
    _say(console, Text.assemble(("warning: ", "yellow"), fact))
    lists = "; ".join(f"layer {layer}: {_list(names)}" for layer, names in proposal.by_layer.items())
    _say(console, Text(f'help: make these layers TiedLayerSpecs with the key "{proposal.key}" and tied_weight_attr {lists};'))
    _say(console, Text(f"      or keep the layers and use the patched module: tiespec patch {shlex.quote(target)}"))
