"""Frontier: choose the pages to fetch next, greedily by cash, with host politeness and one crawler per page."""

from opic.admission import Admission
from opic.frontier.frontier import Frontier
from opic.frontier.requests import PagesRequest, PolitenessSettings
from opic.messages.frontier import HostPoliteness

__all__ = ["Admission", "Frontier", "HostPoliteness", "PagesRequest", "PolitenessSettings"]
