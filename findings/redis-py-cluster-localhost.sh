#!/usr/bin/env bash
# redis-py 8.1.0: a client of a cluster turns the name localhost into 127.0.0.1 before it connects. So a certificate for the
# name localhost is refused in a cluster, where a client of one server takes it. Any other name is kept. The listener here
# answers nothing: it only shows the certificate, by Python's ssl.
#   one server: the certificate is taken, the connection ends without an answer
#   cluster: certificate is not valid for '127.0.0.1'
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/env"
"$folder/env/bin/pip" install --quiet redis==8.1.0
openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -keyout "$folder/key.pem" -out "$folder/cert.pem" \
  -subj /CN=listener -addext subjectAltName=DNS:localhost -days 2 2> "$folder/said"
cat > "$folder/run.py" <<'PYTHON'
import socket
import ssl
import sys
import threading

import redis

certificate, key = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
listener = socket.create_server(("127.0.0.1", 0))


def show_certificate():
    while True:
        connection, _ = listener.accept()
        try:
            with context.wrap_socket(connection, server_side=True):
                pass
        except OSError:  # The client refused it.
            connection.close()


threading.Thread(target=show_certificate, daemon=True).start()
trusted = {"port": listener.getsockname()[1], "ssl": True, "ssl_ca_certs": certificate}


def said(ask):
    try:
        ask()
    except (redis.RedisError, redis.exceptions.RedisClusterException) as error:
        return str(error)


one = said(lambda: redis.Redis("localhost", **trusted).ping())
many = said(lambda: redis.RedisCluster("localhost", **trusted))
print("one server:", one)
print("cluster:", many)
assert "CERTIFICATE" not in one and "certificate is not valid for '127.0.0.1'" in many, "it changed"
PYTHON
"$folder/env/bin/python" "$folder/run.py" "$folder/cert.pem" "$folder/key.pem"
