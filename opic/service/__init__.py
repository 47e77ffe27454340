"""The service as one object: store, log, worker and what the endpoint asks of them."""
