"""Reporters: data in, text out. They import neither torch nor what loads the user's code."""
