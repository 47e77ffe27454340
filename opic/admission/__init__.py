"""URL admission: which pages may be suggested, by an operator's rules and by crawler trap detection."""

from opic.admission.admission import SCOPE, Admission
from opic.admission.policy import Policy, check_policy
from opic.admission.shares import Ration

__all__ = ["SCOPE", "Admission", "Policy", "Ration", "check_policy"]
