"""``--format concise``: a line for each finding, to be clicked on."""

from __future__ import annotations

from collections.abc import Sequence

from tiespec.report.checked import Checked
from tiespec.report.findings import summary


def concise(checked: Sequence[Checked]) -> str:
    """``file:line: CODE message``, and a last line for each target that counts."""
    lines = []
    for one in checked:
        for finding in one.report.findings if one.report else ():
            where = f"{finding.file}:{finding.line}" if finding.file else one.target
            lines.append(f"{where}: {finding.code} {finding.message}")
        lines.append(summary(one.report) if one.report else f"{one.target}: could not be checked: {one.error}")
    return "\n".join(lines) + "\n"
