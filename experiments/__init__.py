"""The papers' experiments, repeated on recorded graphs: `python -m experiments --list`."""
