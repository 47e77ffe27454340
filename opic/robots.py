"""robots.txt (RFC 9309), as Protego reads it: wildcards, and the longest pattern that matches counts.

Anybody may write one, so what reading costs is bounded: Protego's time and memory grow with the agents times the rules.
"""

from typing import Final

from protego import Protego

ROBOTS_BYTES_MAX: Final = 512 << 10  # RFC 9309 asks for 500 KiB at least.
WORK_MAX: Final = 1_000_000  # Lines that name agents, times all lines. Of 4,231 real sites the most is 583,000.
FORBIDDEN: Final = "User-agent: *\nDisallow: /\n"


def robots_rules(body: bytes) -> Protego:
    """Return what a robots.txt says; `can_fetch` and `crawl_delay` of the result take the whole User-Agent.

    Args:
        body: of the file. Of one over `ROBOTS_BYTES_MAX` bytes the whole lines within them count. One that names very
            many agents, and has very many rules, forbids all.

    >>> rules = robots_rules(b"\\xef\\xbb\\xbfUser-agent: *\\nDisallow: /*.pdf$\\nAllow: /a/open.pdf$")
    >>> [rules.can_fetch(f"http://a.example/{page}", "bot/1") for page in ("a/b.pdf", "a/open.pdf", "a/b.pdf?c")]
    [False, True, True]
    """
    if len(body) > ROBOTS_BYTES_MAX:
        body = body[: body.rfind(b"\n", 0, ROBOTS_BYTES_MAX) + 1]
    text = body.decode("utf-8", "replace").lstrip("\ufeff")
    lines = text.splitlines()
    agents = sum(line.lstrip()[:4].lower() == "user" for line in lines)
    return Protego.parse(text if agents * len(lines) <= WORK_MAX else FORBIDDEN)
