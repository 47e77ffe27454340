"""What a shared production has besides: TLS to Kafka and to the store, tokens with roles, rates of the crawlers."""

import hashlib
import tempfile
from pathlib import Path

from certificates import Certificate
from kafka_server import Kafka
from servers import Binary

LISTENER = "TLS"
ADMIN, CRAWLERS = "admin-of-the-storm-and-nobody-else", "crawlers-of-the-storm-together"
# Fewer than the crawlers make, so that some are refused all the time.
LIMITS = {"calls_per_second": 40, "events_per_second": 200, "concurrent_calls": 2}


class KafkaOverTls(Kafka):
    """A broker that also listens with TLS, with a certificate of its own."""

    def __init__(self, binary: Binary) -> None:
        folder = Path(tempfile.mkdtemp(prefix="opic-storm-tls-"))
        self.certificate = Certificate.make(folder)
        both = folder / "both.pem"
        both.write_text(self.certificate.key.read_text() + self.certificate.file.read_text())
        of_listener = f"listener.name.{LISTENER.lower()}.ssl.keystore"
        lines = f"{of_listener}.type=PEM\n{of_listener}.location={both}\n"
        super().__init__(binary, lines, listeners={LISTENER: "SSL"})


def bearer(token: str) -> dict[str, str]:
    """The header that shows a token."""
    return {"Authorization": f"Bearer {token}"}


def write_tokens(path: Path) -> Path:
    """A file of two tokens: of the inspector, who may do all, and of the crawlers, who may do so much a second."""
    rows = {"inspector": (ADMIN, ["admin"], {}), "crawlers": (CRAWLERS, ["crawl"], LIMITS)}
    lines = list[str]()
    for name, (token, roles, limits) in rows.items():
        lines += [f"[tokens.{name}]", f'sha256 = "{hashlib.sha256(token.encode()).hexdigest()}"', f"roles = {roles}"]
        lines += [f"{limit} = {value}" for limit, value in limits.items()]
    path.write_text("\n".join(lines).replace("'", '"') + "\n")
    return path
