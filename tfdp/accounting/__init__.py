"""What the events of a ledger cost. NumPy and SciPy only; every name is imported on first use."""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfdp.accounting.accountant import Accountant as Accountant
    from tfdp.accounting.composition import BasicComposition as BasicComposition
    from tfdp.accounting.composition import StrongComposition as StrongComposition
    from tfdp.accounting.dp_events import from_dp_event as from_dp_event
    from tfdp.accounting.gdp import GDPAccountant as GDPAccountant
    from tfdp.accounting.groups import group_delta as group_delta
    from tfdp.accounting.groups import group_epsilon as group_epsilon
    from tfdp.accounting.moments import MomentsAccountant as MomentsAccountant
    from tfdp.accounting.monte_carlo import DeltaInterval as DeltaInterval
    from tfdp.accounting.monte_carlo import MonteCarloAccountant as MonteCarloAccountant
    from tfdp.accounting.planning.budget import Budget as Budget
    from tfdp.accounting.planning.budget import (
        PrivacyBudgetExceededError as PrivacyBudgetExceededError,
    )
    from tfdp.accounting.planning.budget import Remaining as Remaining
    from tfdp.accounting.planning.calibration import (
        UnreachableBudgetError as UnreachableBudgetError,
    )
    from tfdp.accounting.planning.calibration import calibrate as calibrate
    from tfdp.accounting.planning.calibration import noise_for_budget as noise_for_budget
    from tfdp.accounting.planning.correlated_plan import CorrelatedPlan as CorrelatedPlan
    from tfdp.accounting.planning.correlated_plan import (
        calibrate_correlated as calibrate_correlated,
    )
    from tfdp.accounting.planning.plan import plan as plan
    from tfdp.accounting.planning.risk import noise_for_risk as noise_for_risk
    from tfdp.accounting.planning.risk import risk_of as risk_of
    from tfdp.accounting.planning.training_plan import TrainingPlan as TrainingPlan
    from tfdp.accounting.pld import PLDAccountant as PLDAccountant
    from tfdp.accounting.prices_of_others import register_price as register_price
    from tfdp.accounting.prv import EpsilonInterval as EpsilonInterval
    from tfdp.accounting.prv import PRVAccountant as PRVAccountant
    from tfdp.accounting.rdp import RDPAccountant as RDPAccountant
    from tfdp.accounting.registry import ACCOUNTANTS as ACCOUNTANTS
    from tfdp.accounting.registry import make_accountant as make_accountant
    from tfdp.accounting.registry import register_accountant as register_accountant
    from tfdp.accounting.sampling_rules import SamplingRule as SamplingRule
    from tfdp.accounting.sampling_rules import register_sampling_rule as register_sampling_rule
    from tfdp.accounting.zcdp import ZCDPAccountant as ZCDPAccountant
    from tfdp.events import NeighboringRelation as NeighboringRelation
    from tfdp.events import UnsupportedEventError as UnsupportedEventError

_NAMES = {
    "ACCOUNTANTS": "tfdp.accounting.registry",
    "Accountant": "tfdp.accounting.accountant",
    "BasicComposition": "tfdp.accounting.composition",
    "CorrelatedPlan": "tfdp.accounting.planning.correlated_plan",
    "Budget": "tfdp.accounting.planning.budget",
    "DeltaInterval": "tfdp.accounting.monte_carlo",
    "EpsilonInterval": "tfdp.accounting.prv",
    "GDPAccountant": "tfdp.accounting.gdp",
    "MomentsAccountant": "tfdp.accounting.moments",
    "MonteCarloAccountant": "tfdp.accounting.monte_carlo",
    "NeighboringRelation": "tfdp.events",
    "PLDAccountant": "tfdp.accounting.pld",
    "PRVAccountant": "tfdp.accounting.prv",
    "PrivacyBudgetExceededError": "tfdp.accounting.planning.budget",
    "RDPAccountant": "tfdp.accounting.rdp",
    "Remaining": "tfdp.accounting.planning.budget",
    "SamplingRule": "tfdp.accounting.sampling_rules",
    "StrongComposition": "tfdp.accounting.composition",
    "TrainingPlan": "tfdp.accounting.planning.training_plan",
    "UnreachableBudgetError": "tfdp.accounting.planning.calibration",
    "UnsupportedEventError": "tfdp.events",
    "ZCDPAccountant": "tfdp.accounting.zcdp",
    "calibrate": "tfdp.accounting.planning.calibration",
    "calibrate_correlated": "tfdp.accounting.planning.correlated_plan",
    "from_dp_event": "tfdp.accounting.dp_events",
    "group_delta": "tfdp.accounting.groups",
    "group_epsilon": "tfdp.accounting.groups",
    "make_accountant": "tfdp.accounting.registry",
    "noise_for_budget": "tfdp.accounting.planning.calibration",
    "noise_for_risk": "tfdp.accounting.planning.risk",
    "plan": "tfdp.accounting.planning.plan",
    "register_accountant": "tfdp.accounting.registry",
    "register_price": "tfdp.accounting.prices_of_others",
    "register_sampling_rule": "tfdp.accounting.sampling_rules",
    "risk_of": "tfdp.accounting.planning.risk",
}

__all__ = list(_NAMES)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(importlib.import_module(_NAMES[name]), name)
    raise AttributeError(f"module 'tfdp.accounting' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
