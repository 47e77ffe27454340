"""Frontier: choose the pages to fetch next, greedily by cash, with host politeness and one crawler per page."""

from opic.admission import Admission
from opic.frontier.frontier import Frontier
from opic.frontier.held_pages import HostPoliteness
from opic.frontier.requests import PagesRequest, PolitenessSettings

__all__ = ["Admission", "Frontier", "HostPoliteness", "PagesRequest", "PolitenessSettings"]
