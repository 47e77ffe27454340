"""The messages of the HTTP API, which the endpoint and the client share; they describe themselves in the document."""
