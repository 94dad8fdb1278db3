"""The command ``check --fix``: check, edit, check again, and show or write what that confirms."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

from tiespec.blame import shown
from tiespec.check_output import COULD_NOT, Delivered, Wanted, inside, reported, status_of
from tiespec.errors import TiespecError
from tiespec.files import replace_files
from tiespec.fixing.confirm import Examined, Offer, confirmed
from tiespec.fixing.difference import unified
from tiespec.fixing.remedy import Remedy, Tie, remedy_of
from tiespec.plan import Planned
from tiespec.report.checked import Checked
from tiespec.report.findings import summary
from tiespec.session import do
from tiespec.verdict import Finding, Report


def fixed(planned: Sequence[Planned], folder: str | None, wanted: Wanted, debug: bool, write: bool) -> Delivered:
    """As ``check_output.delivered``; what has no fix is said on stderr.

    The report is of the files as they are. Edits are offered only if a check of the edited text confirms them.

    Args:
        planned (Sequence[Planned]): what to check.
        folder (str | None): where the targets' paths are relative to.
        wanted (Wanted): what to write; in a format for machines the diff goes to stderr.
        debug (bool): run the user's code in this process, the first time.
        write (bool): write the edited files.

    Raises:
        TiespecError: as ``check_output.delivered``; or a file cannot be written.
    """
    with inside(folder):
        found = _found(planned, {}, debug)
    text, status, unwritten = reported([checked for checked, _ in found], folder, wanted)
    with inside(folder):
        read, first = cache(_content), _joined(found)
        offer = _offer(planned, first, read)
        said = _difference(offer, read)
        if write:
            said, status = said + _write(offer, read), COULD_NOT if unwritten else _status(planned, offer)
        remarks = _remarks(first, offer, write)
    is_text = wanted.format == "text"
    return (f"{text}\n{said}" if said and is_text else text), status, ("" if is_text else said) + remarks + unwritten


Read = Callable[[str], "bytes | None"]


def _content(path: str) -> bytes | None:
    """Read once: what is edited, shown and replaced is one text."""
    return Path(path).read_bytes() if os.path.isfile(path) else None


def _offer(planned: Sequence[Planned], first: Examined, read: Read) -> Offer:
    def edit(files: Mapping[str, bytes], remedies: Sequence[Remedy], ties: set[Tie]) -> Mapping[str, bytes]:
        from tiespec.fixing.rewrite import rewritten  # LibCST is loaded only where there is something to mend

        return rewritten(files, remedies, ties, read)

    return confirmed(first, edit, lambda files: _joined(_found(planned, files, False)))


Found = list[tuple[Checked, list[Remedy]]]


def _found(planned: Sequence[Planned], files: Mapping[str, bytes], debug: bool) -> Found:
    """Check every target with other content for some files, which stay as they are."""
    with TemporaryDirectory(prefix="tiespec-fix-") as folder:
        overlay = {path: os.path.join(folder, str(number)) for number, path in enumerate(files)}
        for path, other in overlay.items():
            Path(other).write_bytes(files[path])
        return [_examined(target, one, overlay, debug) for target, one in enumerate(planned)]


def _joined(found: Found) -> Examined:
    return Examined(tuple(checked.report for checked, _ in found), tuple(y for _, remedies in found for y in remedies))


def _status(planned: Sequence[Planned], offer: Offer) -> int:
    return status_of([Checked(one.target, report) for one, report in zip(planned, offer.examined.reports, strict=True)])


def _examined(target: int, one: Planned, overlay: Mapping[str, str], debug: bool) -> tuple[Checked, list[Remedy]]:
    try:
        result = do("fix", {**one.options, "overlay": dict(overlay)}, one.timeout, debug)
    except TiespecError as error:
        return Checked(one.target, error=error), []
    remedies = [remedy_of(fields, target) for fields in result["remedies"]]
    return Checked(one.target, Report.model_validate(result["report"])), remedies


def _difference(offer: Offer, read: Read) -> str:
    return "".join(unified(shown(path), read(path) or b"", after) for path, after in sorted(offer.files.items()))


def _write(offer: Offer, read: Read) -> str:
    """Write the files, and say which, and what is left to do."""
    replace_files({path: (read(path) or b"", after) for path, after in offer.files.items()})
    lines = [f"wrote {shown(path)}" for path in sorted(offer.files)]
    lines += [summary(report) for report in offer.examined.reports if report is not None and offer.files]
    return "".join(f"{line}\n" for line in lines)


def _remarks(first: Examined, offer: Offer, write: bool) -> str:
    """For people, on stderr."""
    left = [f"no fix: {_named(finding)}" for _, finding in offer.examined.failing()]
    if not any(first.failing()):
        left = ["nothing to fix"]
    elif left:
        left.append("help: what has no fix is not sure enough to be written for you; its own help says what to do")
    if offer.files and not write:
        left.append("help: --fix --write writes the edits above")
    return "".join(f"{line}\n" for line in dict.fromkeys(left))


def _named(finding: Finding) -> str:
    where = f"{finding.file}:{finding.line}: " if finding.file else ""
    about = [] if finding.key is None else [f'key "{finding.key}"']
    about += [] if finding.path is None or finding.code == "TIE202" else [f'"{finding.path}"']
    return f"{where}{finding.code} {finding.name}" + (f" ({', '.join(about)})" if about else "")
