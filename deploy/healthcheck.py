"""Whether the process of this container is well: exit 0 if it answers 2xx at a path, /healthz unless another is named.

A worker is asked at OPIC_WORKER_PORT, where that is set; else it is the endpoint, at OPIC_PORT. Nothing but the
standard library is imported, so that a check is quick.
"""

import os
import sys
import urllib.error
import urllib.request

SECONDS = 4.0


def main() -> int:
    """Ask, print what was said, return the exit status."""
    port = os.environ.get("OPIC_WORKER_PORT") or os.environ.get("OPIC_PORT") or "8080"
    path = sys.argv[1] if len(sys.argv) > 1 else "/healthz"
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=SECONDS) as answer:
            print(answer.read(300).decode(errors="replace").strip())
            return 0
    except urllib.error.HTTPError as error:
        with error:
            print(f"{error.code} {error.read(300).decode(errors='replace').strip()}")
    except OSError as error:
        print(f"no answer on port {port}: {error}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
