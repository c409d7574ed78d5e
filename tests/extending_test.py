"""docs/extending.md: every example runs as written, is short, and is what the page says it is."""

import pathlib
import re
import sys
import types

import keras
import numpy as np
import pytest

import tfdp
from tests.cli.running import run
from tfdp.accounting import normal_form, prices_of_others, registry, sampling_rules
from tfdp.events import registry as event_registry
from tfdp.gradients.rules import rule
from tfdp.report import gather, to_markdown

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "extending.md"
EXAMPLES = {
    name: code.strip("\n")
    for name, code in re.findall(
        r"^## An? (.*?)\n.*?^```python\n(.*?)^```",
        PAGE.read_text("utf-8"),
        re.DOTALL | re.MULTILINE,
    )
}
# Where examples leave something behind.
_TABLES = (
    event_registry._REGISTERED,
    prices_of_others._PRICED_BY,
    normal_form.RELEASES,
    registry.ACCOUNTANTS,
    rule._RULES,
    sampling_rules._RULES,
    sampling_rules._RULES_BY,
)


@pytest.fixture(autouse=True)
def _as_before():
    before = [dict(table) for table in _TABLES]
    yield
    for table, was in zip(_TABLES, before, strict=True):
        table.clear()
        table.update(was)


@pytest.fixture
def example(monkeypatch):
    """Returns a function that runs an example as a module of its own, and returns the module."""

    def make(name):
        module = types.ModuleType("my_package")
        monkeypatch.setitem(sys.modules, "my_package", module)
        exec(compile(EXAMPLES[name], f"{PAGE.name}, {name}", "exec"), vars(module))
        return module

    return make


def test_there_is_an_example_of_everything():
    assert list(EXAMPLES) == [
        "event",
        "accountant",
        "query",
        "test of a query",
        "layer rule",
        "sampling policy",
        "amplified sampling",
    ]


@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs_and_is_short(name, example):
    assert len(EXAMPLES[name].splitlines()) <= 50
    example(name)


def test_a_report_names_the_price_of_another_package(example, tmp_path):
    module = example("event")
    page = to_markdown(gather(module.ledger, 1e-5, ["prv"]))
    assert "Prices that are not tfdp's" in page
    assert "GeometricCountEvent (by my\\_package)" in page
    assert "count with geometric noise" in page
    assert "change by one unit, at most: 1" in page


def test_replay_names_the_price_of_another_package(example, tmp_path, capsys):
    path = tmp_path / "run.ledger"
    example("event").ledger.save(path)
    status, out, _ = run(capsys, "replay", str(path), "--delta", "1e-5")
    assert status == 0
    assert "not priced by tfdp: GeometricCountEvent (by my_package)" in out


def test_a_ledger_of_unregistered_events_is_refused_by_name(example, tmp_path, capsys):
    path = tmp_path / "run.ledger"
    example("event").ledger.save(path)
    del event_registry._REGISTERED["GeometricCountEvent"]
    status, _, err = run(capsys, "replay", str(path), "--delta", "1e-5")
    assert status == 2
    assert "'GeometricCountEvent'" in err
    assert "needs that package: import it" in err


def test_a_report_states_what_its_own_accountants_say(example):
    module = example("accountant")
    facts = gather(module.ledger, 1e-5, ["basic", "advanced"])
    assert facts.costs.headline.name == "basic"
    assert facts.costs.headline.epsilons > facts.costs.costs[1].epsilons
    assert "For comparison, computed by my_package" in facts.costs.costs[1].kind


def test_replay_asks_an_accountant_of_another_package(example, tmp_path, capsys):
    path = tmp_path / "run.ledger"
    example("accountant").ledger.save(path)
    status, out, _ = run(capsys, "replay", str(path), "--delta", "1e-5", "--accountant", "advanced")
    assert status == 0
    assert re.search(r"epsilon = 1\.61\d* at delta = 1e-05 \(advanced\)", out)


def test_the_policy_draws_each_unit_once_a_pass(example):
    policy = example("sampling policy").Rotation(parts=3).resolve(10, 4)
    draws = policy.draw(np.random.default_rng(0))
    found = [next(draws) for _ in range(6)]
    assert sorted(np.concatenate(found[:3])) == list(range(10))
    assert [list(part) for part in found[:3]] == [list(part) for part in found[3:]]
    assert max(map(len, found)) == policy.padded_size


def test_the_rule_is_used(example):
    module = example("layer rule")
    assert isinstance(rule.rule_for(module.model.layers[0]), module.ScaleRule)


def test_fit_draws_and_records_by_the_policy(example):
    policy = example("sampling policy").Rotation(parts=3)
    model = tfdp.keras.DPSequential([keras.Input([2]), keras.layers.Dense(1)])
    query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=1.0, denominator=4)
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query)
    model.compile(optimizer, "mse")
    x = np.zeros([10, 2])
    model.fit(x, x[:, :1], batch_size=4, epochs=2, sampling=policy, verbose=0)
    described = [(event.sampling, count) for event, count in optimizer.ledger]
    assert described == [(policy.description(0), 3), (policy.description(1), 3)]
