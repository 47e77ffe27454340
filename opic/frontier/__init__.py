"""The frontier: which pages to fetch next. Greedy by cash, polite to hosts, no page to two crawlers at once."""

from opic.frontier.admission import Admission
from opic.frontier.frontier import Frontier
from opic.frontier.held_pages import Manners
from opic.frontier.requests import PagesRequest, PolitenessSettings

__all__ = ["Admission", "Frontier", "Manners", "PagesRequest", "PolitenessSettings"]
