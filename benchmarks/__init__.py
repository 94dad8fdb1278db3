"""What tiespec costs, beside what a user would otherwise run; `python -m benchmarks`."""
