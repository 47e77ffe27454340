"""HTTP calls as curl makes them, each over a connection of its own, and as `httpx.get` and its kin do.

Those make a client for each call, which reads the certificates that the system trusts: 20 to 60 ms of CPU. Tests ask a
service many times a second whether it is ready, and would slow down what they wait for.
"""

import httpx

_CLIENT = httpx.Client(limits=httpx.Limits(max_keepalive_connections=0))
get, post, put, patch, delete, request, head, options = (
    _CLIENT.get,
    _CLIENT.post,
    _CLIENT.put,
    _CLIENT.patch,
    _CLIENT.delete,
    _CLIENT.request,
    _CLIENT.head,
    _CLIENT.options,
)
