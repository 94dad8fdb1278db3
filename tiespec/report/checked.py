"""What the reporters of ``tiespec check`` take: targets with their report, or with why there is none."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tiespec.errors import TiespecError
from tiespec.verdict import Finding, Report


@dataclass(frozen=True)
class Checked:
    """One target.

    Args:
        target (str): as it was asked for.
        report (Report | None): what was found; None where it could not be checked.
        error (TiespecError | None): why it could not.
    """

    target: str
    report: Report | None = None
    error: TiespecError | None = None


def all_findings(checked: Sequence[Checked]) -> Iterator[tuple[Checked, Finding, str]]:
    """Every finding, with its target and its fingerprint.

    The fingerprint holds no line, so that it is the same after lines were inserted above; what would be equal is numbered.
    """
    seen: Counter[str] = Counter()
    for one in checked:
        for finding in one.report.findings if one.report else ():
            parts = (one.target, finding.code, finding.file, finding.key, finding.layer, finding.path)
            name = "\0".join(str(part) for part in parts)
            seen[name] += 1
            yield one, finding, hashlib.sha256(f"{name}\0{seen[name]}".encode()).hexdigest()[:32]


def explained(finding: Finding) -> str:
    """Message, consequence and help in one paragraph."""
    then = "" if finding.consequence == "none" else f" What happens: {finding.consequence}."
    return f"{finding.message}.{then} Help: {finding.help}."
