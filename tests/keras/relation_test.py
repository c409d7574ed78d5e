"""What the neighbouring relation of a run says, and that nothing in the run contradicts it."""

import numpy as np
import pytest
import tensorflow as tf
import toy

import tfdp
from tfdp.accounting import RDPAccountant
from tfdp.events import FullBatchSampling, NeighboringRelation, PoissonSampling
from tfdp.sampling import FixedSize, FullBatch, Poisson, Shuffled

ADD, REPLACE, ZERO = NeighboringRelation
X, Y = toy.data()
N = len(X)


def private(**kwargs):
    return toy.private(toy.linear(), toy.dp(**kwargs))


@pytest.mark.parametrize("policy", [Poisson(), Shuffled(), FullBatch(), FixedSize()])
def test_a_blank_record_leaves_everything_but_the_sums(policy, monkeypatch):
    found = []
    for blank in (False, True):
        draws = np.random.default_rng(5)
        monkeypatch.setattr("tfdp.sampling.arrays.host_generator", lambda _, draws=draws: draws)
        x = X.copy()
        x[1] = np.nan if blank else x[1]  # It contributes zero.
        model = private()
        start = toy.weights(model)
        size = {} if isinstance(policy, FullBatch) else {"batch_size": 4}
        model.fit(
            x, Y, sampling=policy, steps_per_epoch=1, validation_split=0.25, verbose=0, **size
        )
        (moved,) = (new - old for new, old in zip(toy.weights(model), start, strict=True))
        found.append((moved, toy.events(model)))
    (moved, events), (blanked, same_events) = found
    assert events == same_events
    # The learning rate is 0.5 and the denominator 10.
    assert np.linalg.norm(moved - blanked) <= 0.5 * toy.CLIP / 10 * (1 + 1e-6)


def test_fit_on_arrays_is_about_zeroed_records():
    model = private()
    model.fit(X, Y, batch_size=3, verbose=0)
    (entry,) = model.ledger
    assert entry.event.neighboring_relation is ZERO
    assert entry.event.sampling == PoissonSampling(3 / N, N)


@pytest.mark.parametrize("num_examples", [N, N - 1])
def test_under_add_or_remove_the_ledger_does_not_follow_the_number_of_records(num_examples):
    x, y = X[:num_examples], Y[:num_examples]
    model = private()
    model.fit(x, y, sampling=Poisson(0.5, neighboring_relation=ADD), verbose=0)
    model.fit(x, y, sampling=FullBatch(neighboring_relation=ADD), verbose=0)
    assert [(e.event.neighboring_relation, e.event.sampling, e.count) for e in model.ledger] == [
        (ADD, PoissonSampling(0.5), 2),
        (ADD, FullBatchSampling(), 1),
    ]


@pytest.mark.parametrize(
    ("policy", "size", "message"),
    [
        (Poisson(neighboring_relation=ADD), {}, "Choose q as a public number"),
        (Poisson(0.25, neighboring_relation=ADD), {"batch_size": 3}, "leave it out"),
        (Shuffled(neighboring_relation=ADD), {}, "number of units is not public"),
        (FixedSize(neighboring_relation=ADD), {}, "number of units is not public"),
        (Poisson(0.25, None, ADD), {"validation_split": 0.25}, "would push another one out"),
        (FullBatch(None, ADD), {"validation_split": 0.25}, "would push another one out"),
    ],
)
def test_under_add_or_remove_what_follows_the_number_of_records_is_refused(policy, size, message):
    model = private()
    with pytest.raises(ValueError, match=message):
        model.fit(X, Y, sampling=policy, verbose=0, **size)
    assert not model.ledger.total_count


def test_every_way_to_train_on_one_data_set_has_a_common_epsilon():
    model = private(stddev=20.0)
    model.train_on_batch(X, Y)
    with pytest.warns(UserWarning, match="no amplification"):
        model.fit(tf.data.Dataset.from_tensor_slices((X, Y)).batch(4), verbose=0)
    for policy in (Poisson(), Shuffled(), FixedSize()):
        model.fit(X, Y, batch_size=4, sampling=policy, verbose=0)
    model.fit(X, Y, sampling=Poisson(0.25, neighboring_relation=ADD), verbose=0)
    assert model.ledger.neighboring_relation is ZERO
    budget = tfdp.keras.PrivacyBudget(100.0, 1e-5)
    model.fit(X, Y, batch_size=4, verbose=0, callbacks=[budget])
    epsilon = model.ledger.replay(RDPAccountant()).get_epsilon(1e-5)
    apart = sum(
        RDPAccountant().compose(entry.event, entry.count).get_epsilon(1e-5)
        for entry in model.ledger
    )
    assert 0 < epsilon < apart
