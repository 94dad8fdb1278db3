"""``python -m tests.differential --cases N --seed S``: many cases, a table, and every disagreement as a folder."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.differential.judge import Judged, case, judge
from tests.differential.source import source


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.differential")
    parser.add_argument("--cases", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1, help="case i has the seed SEED * 1000000 + i")
    parser.add_argument("--out", type=Path, default=Path("build/disagreements"))
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    seeds = [asked.seed * 1_000_000 + i for i in range(asked.cases)]
    table: Counter[tuple[str, str]] = Counter()
    patched: Counter[str] = Counter()
    codes: Counter[str] = Counter()
    with ThreadPoolExecutor(asked.jobs) as pool:
        for seed, found in zip(seeds, pool.map(judged, seeds), strict=True):
            table["/".join(found.said), found.real] += 1
            patched[found.patched] += 1
            codes.update(found.codes)
            if not found.agrees or not found.repaired:
                print(
                    f"{seed}: check {found.said} {found.codes}, real {found.real}, patched {found.patched}, {found.model.faults}",
                    flush=True,
                )
                write(asked.out / str(seed), found)
    print_table(table)
    print("patched: " + ", ".join(f"{name} {count}" for name, count in sorted(patched.items())))
    print("rules: " + ", ".join(f"{code} {count}" for code, count in sorted(codes.items())))


def judged(seed: int) -> Judged:
    """The case of a seed, in a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return judge(case(seed), Path(folder))
        except AssertionError as error:  # it is in the table as what it is, and the other cases go on
            print(f"{seed}: {error}", flush=True)
            return Judged(case(seed), ("?",), (), "no answer", "no answer")


def write(folder: Path, found: Judged) -> None:
    """A disagreement as a case that can be run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.py").write_text(source(found.model))
    said = {"said": found.said, "codes": found.codes, "real": found.real, "patched": found.patched, "details": found.details}
    (folder / "case.json").write_text(json.dumps(said, indent=2))


def print_table(table: Counter[tuple[str, str]]) -> None:
    """Rows: what `check` says; columns: what happened."""
    rows, columns = sorted({said for said, _ in table}), sorted({real for _, real in table})
    print(f"| check says | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}")
    for said in rows:
        print(f"| {said} | {' | '.join(str(table[said, real] or '') for real in columns)} |")
    agreed = sum(count for (said, real), count in table.items() if real in said.split("/"))
    print(f"{agreed} of {sum(table.values())} agree")


if __name__ == "__main__":
    main()
