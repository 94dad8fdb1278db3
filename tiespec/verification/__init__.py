"""``tiespec verify``: a real pipeline on real processes, compared with one process that shares Parameters for real."""
