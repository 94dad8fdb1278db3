"""The catalogue of rules: one function each, all on one frozen context. They return data and print nothing."""

from tiespec.rules import agreement, coverage, gradients, intent, keys, lists, paths, specfile, topology
from tiespec.rules.catalogue import RULES as _registered

RULES = dict(sorted(_registered.items()))
"""Code -> rule."""

__all__ = ["RULES", "agreement", "coverage", "gradients", "intent", "keys", "lists", "paths", "specfile", "topology"]
