"""tfdp.events.protection: epsilons about different things have nothing in common."""

import itertools

import pytest

from tfdp.events import (
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    SampledEvent,
    UnsupportedEventError,
)
from tfdp.events.protection import Protection, common_protection, protection

RELATIONS = list(NeighboringRelation)
UNITS = ["example", "microbatch", "user"]
ALL = [Protection(r, u) for r in RELATIONS for u in [*UNITS, None]]


@pytest.mark.parametrize("relation", RELATIONS)
@pytest.mark.parametrize("unit", UNITS)
def test_a_step_says_what_it_protects(relation, unit):
    step = SampledEvent(FullBatchSampling(), GaussianSumEvent(1.0, 1.0), relation, unit)
    assert protection(step) == (relation, unit)


def test_a_bare_event_is_about_any_unit_added_or_removed():
    bare = protection(GaussianSumEvent(1.0, 1.0))
    assert bare == (NeighboringRelation.ADD_OR_REMOVE_ONE, None)


def test_nothing_protects_nothing():
    assert common_protection([]) is None


@pytest.mark.parametrize(("a", "b"), list(itertools.product(ALL, ALL)))
def test_different_relations_have_zero_out_in_common_and_different_units_nothing(a, b):
    same_relation = a.neighboring_relation is b.neighboring_relation
    relation = a.neighboring_relation if same_relation else NeighboringRelation.ZERO_OUT
    if None in (a.privacy_unit, b.privacy_unit) or a.privacy_unit == b.privacy_unit:
        assert common_protection([a, b]) == (relation, a.privacy_unit or b.privacy_unit)
    else:
        with pytest.raises(UnsupportedEventError, match="have no common epsilon"):
            common_protection([a, b])
