"""Does the recorded spec still describe the model?"""

from __future__ import annotations

from collections.abc import Iterator

from tiespec.rules.catalogue import Found, Undecided, rule
from tiespec.rules.context import Context

Findings = Iterator[Found | Undecided]


@rule("TIE901", "spec-drift", "error", "none")
def spec_drift(context: Context) -> Findings:
    """The model no longer yields the recorded spec.

    A parameter was added, removed, renamed or reshaped, or is used elsewhere than when `tiespec.json` was written. Nothing
    is wrong with the run by that alone; whoever reads the spec (a training script, a converter) reads what is no longer true.

    Fails:

        tiespec generate model.py -o tiespec.json; (change the model); tiespec check model.py --spec tiespec.json

    Right: look at the differences, then write it anew.

        tiespec generate model.py -o tiespec.json
    """
    for key, text in context.drift:
        yield Found(
            f"{context.spec_file}: {text}",
            f"look at the change, then write it anew: tiespec generate {context.pipeline.target} -o {context.spec_file}",
            key=key,
            layer=next((tie.layers[0] for tie in context.ties if tie.key == key), None),
        )


@rule("TIE902", "stale-ignore", "warning", "none")
def stale_ignore(context: Context) -> Findings:
    """An ignore that silences nothing.

    A comment `# tiespec: ignore[TIE202]`, or an ignore of a key in the config, whose fault is gone. It would hide the same
    fault when it comes back.

    Fails:

        TiedLayerSpec("embed", Embedding)       # tiespec: ignore[TIE202]       and the key has two layers

    Right: without the comment.
    """
    return iter(())  # what was silenced is known only after all other rules have run: see findings.py
