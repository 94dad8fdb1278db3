"""For each rule a model that must fail with exactly its code, its twin that must pass, and what a real run of it does."""

from __future__ import annotations

from tests.rules import collectives_models, coverage_models, keys_models, lists_models
from tests.rules.parts import GOOD, PARTS, Example

__all__ = ["EXAMPLES", "GOOD", "PARTS", "Example"]

EXAMPLES: tuple[Example, ...] = (
    *lists_models.EXAMPLES,
    *keys_models.EXAMPLES,
    *coverage_models.EXAMPLES,
    *collectives_models.EXAMPLES,
)
