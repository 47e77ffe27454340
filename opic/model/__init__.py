"""The model: how cash moves, in plain Python and numpy, without a server. `ledger` is the specification."""
