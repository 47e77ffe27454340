"""Answers in sentences, for the console and the command line: why a page has its score, and why it is not offered.

They take answers as the API sends them. What comes from the web is in them as it came, cut to TEXT_MAX characters:
the program that shows them escapes it.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from opic.messages.hindrances import words

TEXT_MAX: Final = 200  # Of a URL in a sentence.
POLICIES: Final = {
    "interpolation": "interpolated over the window",
    "fixed": "in a fixed window",
    "variable": "over its last reads",
    "improved": "over its last reads and the cash that it holds",
}
OUTSIDE: Final = (
    "page is outside the scope of the crawl (OPIC_SCOPE)",
    "pages are outside the scope of the crawl (OPIC_SCOPE)",
)
SHORT: Final = ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "K"))
SPANS: Final = ((86_400 * 2, 86_400, "days"), (3_600 * 2, 3_600, "h"), (120, 60, "min"), (0, 1, "s"))


def waiting(counts: Mapping[str, int]) -> list[str]:
    """Say what holds pages back, a sentence for each kind with any.

    Args:
        counts: by word, and "outside" for pages outside the scope.

    >>> waiting({"leased": 1, "retry": 0, "given_up": 20})[0]
    '1 page is leased to a crawler: its event, or the end of its lease, frees it.'
    """
    told = [(counts.get(word, 0), row.counted) for word, row in words().items()]
    told.append((counts.get("outside", 0), OUTSIDE))
    return [f"{count:,} {said[count != 1]}." for count, said in told if count]


def reasons(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Say why a page has its score and whether it is offered: "about" and "sentences" for each reason.

    Args:
        answer: to `/v1/explain`.
    """
    told: list[tuple[str, Sequence[str]]] = [
        ("Importance", _importance(answer)),
        ("Rank", _rank(answer)),
        ("Who gives it its importance", _givers(answer)),
        ("Cash", _cash(answer)),
        ("Class", _class(answer)),
        _offer(answer["frontier"]),
        ("Forgetting by the rule", _expiry(answer)),
    ]
    return [{"about": about, "sentences": list(sentences)} for about, sentences in told if sentences]


def _importance(answer: Mapping[str, Any]) -> list[str]:
    estimate = answer["estimate"]
    if estimate is None:
        return ["The page is gone: it has none."] if answer.get("gone") else []
    share = _percent(estimate["value"] / estimate["of"]) if estimate["of"] else "No part"
    numbers = estimate["numbers"]
    if estimate["rule"] == "exact":
        sentences = [
            f"{share} of the visits of a random surfer on the links as last read are to this page: its PageRank."
        ]
    elif estimate["rule"] == "loaded":
        sentences = [f"{share} is its importance as it was computed elsewhere and loaded."]
    elif estimate["rule"] == "static":
        sentences = [
            f"{share} of all cash went to this page: its reads passed on {_short(numbers['H'])} grains, and it holds "
            f"{_short(numbers['C'])} now."
        ]
    else:
        sentences = [f"{share} of the cash flow reached this page, {POLICIES.get(answer['policy'], answer['policy'])}."]
    if estimate.get("warm") is False:
        sentences.append("The window is not full yet, so the page's whole life counts.")
    if (bound := answer.get("error_bound")) is not None:
        sentences.append(f"The errors of all pages together are at most {_small(bound)}.")
    terms = ", ".join(f"{name} = {_number(value)}" for name, value in numbers.items())
    formula = f"{estimate['formula']} with {terms}" if terms else str(estimate["formula"])
    return [*sentences, f"Formula: {formula}: {_number(estimate['value'])} of {_number(estimate['of'])} in all."]


def _expiry(answer: Mapping[str, Any]) -> list[str]:
    if (expiry := answer.get("expiry")) is None or answer["state"] != "unread":
        return []
    share = _percent(expiry["below"])
    if expiry["at"] is None:
        return [f"It stays: it is a seed or trusted, or has {share} of all importance or more."]
    when = datetime.fromtimestamp(expiry["at"], UTC).strftime("%Y-%m-%d %H:%M")
    return [f"From {when} UTC on it is forgotten, unless it is read or seeded, or has {share} of all importance."]


def _rank(answer: Mapping[str, Any]) -> list[str]:
    if not answer.get("rank"):
        return []
    percentile = answer.get("percentile")
    than = "" if percentile is None else f", at least as important as {percentile:.4g} % of them"
    return [f"{answer['rank']:,} of {answer['known_pages']:,} known pages{than}."]


def _givers(answer: Mapping[str, Any]) -> list[str]:
    given = answer.get("given_by")
    if given is None:
        return []
    jump = f"The random jump, which reaches every page alike, gives it {_percent(given['jump'])}."
    if not given["known"]:
        return ["No page that was read links to it.", jump]
    pages = "page that was read links" if given["known"] == 1 else "pages that were read link"
    links = max(1 - given["jump"], 0.0)
    most = ", ".join(f"{_cut(giver['url'])} ({_percent(giver['share'])})" for giver in given["pages"])
    return [
        f"{given['known']:,} {pages} to it and give it {_percent(links)} of its importance.",
        f"Most: {most}.",
        jump,
    ]


def _cash(answer: Mapping[str, Any]) -> list[str]:
    parts, history = answer["cash_parts"], answer["history"]
    waiting = f"{_short(answer['cash'])} grains wait for its next read."
    if parts.get("from_links") is None:
        came = f"Links brought {_short(parts['deposits'])} more than reads passed on"
        return [waiting, f"{came}, and the virtual page paid {_short(parts['credit'])}."]
    reads = history["reads"]
    spent = f"; {reads:,} {'read' if reads == 1 else 'reads'} passed on {_short(history['total'])}" if reads else ""
    came = f"Links brought {_short(parts['from_links'])} and the virtual page granted {_short(parts['credit'])}"
    return [waiting, f"{came}{spent}."]


def _class(answer: Mapping[str, Any]) -> list[str]:
    name = answer.get("class") or "other"
    return [] if name == "other" else [f"{name}: its grants are {answer['weight']:g} times the usual one."]


def _offer(frontier: Mapping[str, Any]) -> tuple[str, list[str]]:
    rank, order = frontier["place"], frontier["order"]
    alike = "read" if frontier["state"] == "read" else "never-read"
    by = f"among {alike} pages, by importance" if order == "exact" else f"in the order by {order}"
    where = f"It has place {rank:,} {by}." if rank else "It has no place in the order of pages to fetch."
    rules = [f"{rule['rule']}: {rule['effect']}." for rule in frontier.get("rules", ())]
    if frontier["next"]:
        return "When it is offered", ["It may be handed out now.", where, *rules]
    return "Why it is not offered", [*(f"{why[0].upper()}{why[1:]}." for why in frontier["why_not"]), where, *rules]


def _cut(text: str) -> str:
    return text if len(text) <= TEXT_MAX else f"{text[:TEXT_MAX]}…"


def _percent(share: float) -> str:
    """Return a share in per cent, with three digits that count.

    >>> _percent(0.00673), _percent(1.0), _percent(0.98312)
    ('0.673 %', '100 %', '98.3 %')
    """
    return f"{100 * share:.3g} %"


def _short(count: float) -> str:
    """Return a count of grains with three digits that count.

    >>> _short(45_604_657), _short(-12), _short(999_600)
    ('45.6M', '-12', '1M')
    """
    for size, letter in SHORT:
        if abs(count) >= 0.9995 * size:
            return f"{count / size:.3g}{letter}"
    return f"{count:.0f}"


def _small(value: float) -> str:
    """Return a number with three digits that count.

    >>> _small(0.00823), _small(8.23e-7)
    ('0.00823', '8.23e-7')
    """
    return f"{value:.3g}".replace("e-0", "e-")


def _number(value: float) -> str:
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:.4g}"


def span(seconds: float) -> str:
    """Return a time in words, in one unit.

    >>> span(45), span(8_000), span(400_000)
    ('45 s', '2 h', '5 days')
    """
    size, name = next((size, name) for least, size, name in SPANS if seconds >= least)
    return f"{seconds / size:,.0f} {name}"


def ending(forecast: Mapping[str, Any]) -> str:
    """Say when a crawl ends, or why that can't be told.

    Args:
        forecast: the `forecast` of an answer to `/v1/series`.
    """
    left, idle = forecast["to_fetch"], span(forecast["idle_seconds"])
    if forecast["pace"] == "finished":
        return "Every known page that may be fetched was read."
    if forecast["pace"] == "new":
        return f"{_pages(left)} to fetch. It is too early to tell when the crawl ends."
    if forecast["pace"] == "idle":
        return f"{_pages(left)} to fetch. No event came for {idle}, so it can't be told when the crawl ends."
    a_minute, per_read = 60 * forecast["reads_per_second"], forecast["found_per_read"]
    speed = f"{a_minute:,.0f}" if a_minute >= 10 else f"{a_minute:.2g}"
    pace = f"Lately {speed} pages a minute were read for the first time, and each brought {per_read:.2g} new ones"
    if forecast["pace"] == "growing":
        return f"{_pages(left)} to fetch. {pace}, so no end is in sight."
    return f"{_pages(left)} to fetch. {pace}: at this pace the crawl ends in about {span(forecast['seconds'])}."


def _pages(count: int) -> str:
    return f"{count:,} {'page' if count == 1 else 'pages'}"


def certainty(ranks: Sequence[bool], bound: float | None) -> str:
    """Say which ranks of a list of top pages the error bound makes certain.

    >>> certainty([True, True, False], 0.0012)
    'The error bound 0.0012 makes certain the ranks of 2 of these 3 pages; the others may be in another order.'
    """
    if bound is None:
        return "These estimates have no error bound, so no rank is certain."
    sure, said = sum(ranks), f"The error bound {_small(bound)}"
    if ranks and sure == len(ranks):
        return f"{said} makes all these ranks certain."
    if not sure:
        return (
            f"{said} makes none of these ranks certain: pages whose importance is this close may be in another order."
        )
    return (
        f"{said} makes certain the ranks of {sure:,} of these {_pages(len(ranks))}; the others may be in another order."
    )


def held_back(counts: Mapping[str, int], offered: bool, known: int, outside: int = 0) -> list[str]:
    """Say what holds pages back from being offered, and why nothing is offered where that is so.

    Args:
        counts: by word; pages outside the scope count as denied.
        offered: whether any page is offered.
        known: how many pages the crawl knows.
        outside: how many of them are outside its scope.
    """
    outside = min(outside, counts["denied"])
    sentences = waiting({**counts, "denied": counts["denied"] - outside, "outside": outside})
    if offered or sentences:
        return sentences
    if not known:
        return ["No page is known yet: add some with `opic seed URL`."]
    return ["Every page that may be fetched was read, and none has received cash since."]
