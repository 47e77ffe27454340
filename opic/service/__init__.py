"""The service: store, log, worker and queries combined in one object for the endpoint."""
