"""The frontier: which pages to fetch next. Greedy by cash, polite to hosts, no page to two crawlers at once."""

from opic.frontier.frontier import Frontier
from opic.frontier.hand import Admission
from opic.frontier.held import Manners
from opic.frontier.wish import Politeness, Wish

__all__ = ["Admission", "Frontier", "Manners", "Politeness", "Wish"]
