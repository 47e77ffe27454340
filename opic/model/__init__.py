"""The model of cash: data types and arithmetic in plain Python and numpy. `ledger` is the specification."""
