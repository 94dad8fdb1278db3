"""``python -m tiespec``."""

from tiespec.cli import main

main()
