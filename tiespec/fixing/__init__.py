"""Mending what ``tiespec check`` finds in the user's source: edits, of which only those are offered that a check confirms."""
