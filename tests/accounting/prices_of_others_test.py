"""Prices of events that other packages bring."""

import dataclasses
import math

import pytest

from tfdp.accounting import make_accountant
from tfdp.accounting import normal_form as forms
from tfdp.accounting import prices_of_others as module
from tfdp.accounting.analytic_gaussian import gaussian_epsilon
from tfdp.accounting.mechanisms import (
    Concentrated,
    FixedSizeGaussian,
    NoPrivacy,
    PureEpsilon,
    RandomizedResponse,
    SampledGaussian,
    SampledLaplace,
    amplified_epsilon,
)
from tfdp.accounting.normal_form import normal_form
from tfdp.accounting.prices_of_others import prices_of_others, register_price
from tfdp.events import (
    ComposedEvent,
    Event,
    FullBatchSampling,
    GaussianSumEvent,
    NeighboringRelation,
    PoissonSampling,
    PureEpsilonEvent,
    SampledEvent,
    ShuffledSampling,
    UnsupportedEventError,
    registry,
)

ADD, REPLACE, ZERO = NeighboringRelation
POISSON = PoissonSampling(0.1)
SHUFFLED = ShuffledSampling(batch_size=25, population_size=100)


def _mechanisms(sampling, release, relation):
    return list(normal_form(SampledEvent(sampling, release, relation)).mechanisms)


@dataclasses.dataclass(frozen=True)
class _Counted(Event):
    words = "a count"
    size: float


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTERED", dict(registry._REGISTERED))
    releases = dict(forms.RELEASES)
    for each in (forms, module):
        monkeypatch.setattr(each, "RELEASES", releases)
    monkeypatch.setattr(module, "_PRICED_BY", {})
    return registry.register(_Counted)


def _price(event, factor, relation):
    return PureEpsilon(event.size * factor + (relation is REPLACE))


def test_an_event_of_another_package_has_the_price_that_it_says(registered):
    with pytest.raises(UnsupportedEventError, match=r"_Counted is not supported.*register_price"):
        normal_form(registered(0.5))
    register_price(registered, _price)
    event = registered(0.5)
    assert _mechanisms(FullBatchSampling(), event, ZERO) == [PureEpsilon(0.5)]
    assert _mechanisms(FullBatchSampling(), event, REPLACE) == [PureEpsilon(2.0)]
    assert _mechanisms(POISSON, event, ADD) == [PureEpsilon(amplified_epsilon(0.5, 0.1))]
    assert _mechanisms(SHUFFLED, event, ADD) == [PureEpsilon(1.0), PureEpsilon(0.5)]
    assert prices_of_others(ComposedEvent((event, GaussianSumEvent(1.0, 2.0)))) == {
        f"_Counted (by {__name__})"
    }


@pytest.mark.parametrize(
    "found",
    [
        0.5,
        None,
        PureEpsilon(-0.5),
        PureEpsilon(math.nan),
        PureEpsilon("0.5"),
        Concentrated(-0.5),
        Concentrated(math.nan),
        SampledGaussian(0.1, 1.0),
        FixedSizeGaussian(1, 10, 1.0),
        RandomizedResponse(0.5, 2, False),
    ],
    ids=repr,
)
def test_a_price_of_another_package_that_is_none_is_refused(registered, found):
    register_price(registered, lambda event, factor, relation: found)
    with pytest.raises(UnsupportedEventError, match=r"The price of a _Counted must be one of"):
        normal_form(registered(0.5))


@pytest.mark.parametrize(
    ("found", "mechanisms"),
    [
        (SampledGaussian(1, 0.0), (NoPrivacy(),)),
        (PureEpsilon(math.inf), (NoPrivacy(),)),
        (SampledLaplace(1, 2), (SampledLaplace(1, 2),)),
    ],
    ids=repr,
)
def test_a_price_of_another_package_is_put_within_the_ranges(registered, found, mechanisms):
    register_price(registered, lambda event, factor, relation: found)
    assert normal_form(registered(0.5)).mechanisms == mechanisms


def test_what_is_concentrated_is_not_amplified(registered):
    register_price(registered, lambda event, factor, relation: Concentrated(event.size * factor**2))
    event = registered(0.5)
    assert _mechanisms(FullBatchSampling(), event, ADD) == [Concentrated(0.5)]
    assert _mechanisms(FullBatchSampling(), event, REPLACE) == [Concentrated(2.0)]
    assert _mechanisms(POISSON, event, ADD) == [Concentrated(0.5)]
    # One unit leaves the sample, and another one comes.
    assert _mechanisms(POISSON, event, REPLACE) == [Concentrated(2.0)]
    assert _mechanisms(SHUFFLED, event, ADD) == [Concentrated(2.0), Concentrated(0.5)]


@pytest.mark.parametrize("name", ["rdp", "prv", "pld", "zcdp", "moments", "strong", "basic", "gdp"])
@pytest.mark.parametrize("relation", [ADD, REPLACE])
def test_no_accountant_asks_less_of_it_than_a_gaussian_costs(registered, name, relation):
    register_price(registered, lambda event, factor, relation: Concentrated(event.size * factor**2))
    z, factor = 4.0, 2 if relation is REPLACE else 1
    exact = gaussian_epsilon(factor * math.sqrt(9) / z, 1e-6)
    for sampling in (FullBatchSampling(), POISSON):
        accountant = make_accountant(name, relation)
        event = SampledEvent(sampling, registered(0.5 / z**2), relation)
        if name in ("pld", "strong", "basic", "gdp"):
            with pytest.raises(UnsupportedEventError):
                accountant.compose(event, 9)
            continue
        assert exact <= accountant.compose(event, 9).get_epsilon(1e-6) <= exact * 1.2


def test_a_gaussian_of_another_package_is_not_merged_with_ours(registered):
    register_price(registered, lambda event, factor, relation: SampledGaussian(1, 2.0))
    both = ComposedEvent((registered(1.0), GaussianSumEvent(1.0, 2.0)))
    assert normal_form(both).mechanisms == (SampledGaussian(1.0, 2.0), SampledGaussian(1, 2.0))
    with pytest.raises(UnsupportedEventError, match="not supported together"):
        normal_form(SampledEvent(POISSON, both))


def test_bad_prices_are_refused(registered):
    register_price(registered, _price)
    register_price(registered, lambda event, factor, relation: PureEpsilon(9.0))  # Defined anew.
    assert normal_form(registered(0.5)).mechanisms == (PureEpsilon(9.0),)
    for kind, price, error, message in (
        (registered, math.fsum, ValueError, f"_Counted has a price already, by {__name__}"),
        (PureEpsilonEvent, _price, ValueError, "PureEpsilonEvent has a price already"),
        (ComposedEvent, _price, ValueError, "ComposedEvent has a price already"),
        (PoissonSampling, _price, TypeError, "Register the class of events first"),
        (float, _price, TypeError, "Register the class of events first"),
        (registered, 3.0, TypeError, "must be a function"),
    ):
        with pytest.raises(error, match=message):
            register_price(kind, price)
