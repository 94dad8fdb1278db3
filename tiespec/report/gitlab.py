"""``--format gitlab``: GitLab's Code Quality report."""

from __future__ import annotations

import json
from collections.abc import Sequence

from tiespec.report.checked import Checked, all_findings, explained

SEVERITIES = {"error": "critical", "warning": "minor", "note": "info"}


def gitlab(checked: Sequence[Checked]) -> str:
    """A JSON array. GitLab merges what has equal fingerprints, and needs a path and a line for each entry."""
    entries = [
        {
            "description": explained(finding),
            "check_name": f"{finding.code} {finding.name}",
            "fingerprint": fingerprint,
            "severity": SEVERITIES[finding.severity],
            "location": {"path": finding.file or one.target.partition(":")[0], "lines": {"begin": finding.line or 1}},
        }
        for one, finding, fingerprint in all_findings(checked)
    ]
    entries += [
        {
            "description": f"{one.error}. {one.error.help}",
            "check_name": "could not be checked",
            "fingerprint": f"could-not-be-checked {one.target}",
            "severity": "blocker",
            "location": {"path": one.error.file or one.target.partition(":")[0], "lines": {"begin": one.error.line or 1}},
        }
        for one in checked
        if one.error is not None
    ]
    return json.dumps(entries, indent=2) + "\n"
