"""The command line: one file a command; only render.py prints."""
