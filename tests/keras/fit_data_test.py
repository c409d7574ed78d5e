"""Data sets and generators in `fit`: their steps, what is declared of them, and their passes."""

import dataclasses
import logging
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import toy
from toy import L

import tfdp
from tfdp.accounting import RDPAccountant
from tfdp.accounting.mechanisms import AllocatedGaussian
from tfdp.events import NeighboringRelation, PoissonSampling
from tfdp.keras import NotPrivateError, distributed_data, distribution, fit_data
from tfdp.sampling import Poisson, RandomAllocation, SamplingPolicy, Shuffled, Unknown, Users

X, Y = toy.data()


N = len(X)


def crossentropy(model, i, **kwargs):
    """The loss of example i, without Keras' loss machinery."""
    return tf.nn.sparse_softmax_cross_entropy_with_logits(
        Y[i : i + 1], model(X[i : i + 1], **kwargs)
    )


def dataset(batch_size=4):
    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(batch_size)


def test_data_set_takes_the_same_step():
    model = toy.private()
    expected, _ = toy.step_by_hand(model, [lambda i=i: crossentropy(model, i) for i in range(N)])
    model.fit(dataset(N), sampling=Shuffled(batch_size=N, population_size=N), verbose=0)
    toy.assert_weights(model, expected)


def test_undeclared_data_set_warns_and_is_unknown():
    model = toy.private(toy.linear())
    with pytest.warns(UserWarning, match="sampling=tfdp.sampling.Shuffled") as caught:
        model.fit(dataset(), verbose=0)
    assert {warning.filename for warning in caught} == {__file__}  # Where `fit` was called.
    (entry,) = model.ledger
    assert (entry.event.sampling, entry.count) == (tfdp.events.UnknownSampling(), 3)


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (Poisson(sampling_probability=1 / 3), tfdp.events.PoissonSampling(1 / 3)),
        (Poisson(1 / 3, N), tfdp.events.PoissonSampling(1 / 3, N)),
        (Unknown(), tfdp.events.UnknownSampling()),
    ],
)
def test_declared_data_set_is_recorded_as_declared(policy, expected):
    model = toy.private(toy.linear(), run_eagerly=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(dataset(), sampling=policy, verbose=0)
    assert {event.sampling for event in toy.events(model)} == {expected}


def passes(model):
    return [event.sampling.pass_index for event in toy.events(model)]


def test_every_epoch_of_a_data_set_begins_a_pass_also_after_another_fit():
    model = toy.private(toy.linear())
    policy = Shuffled(batch_size=4, population_size=N)
    model.fit(dataset(), sampling=policy, epochs=2, verbose=0)
    assert passes(model) == [0, 0, 0, 1, 1, 1]
    model.fit(dataset(), sampling=policy, epochs=3, steps_per_epoch=1, verbose=0)
    assert passes(model)[6:] == [
        2,
        3,
        4,
    ]  # Partial epochs; a pass that has begun is never continued.
    model.fit(dataset().repeat(), sampling=policy, steps_per_epoch=4, verbose=0)
    assert passes(model)[9:] == [5, 5, 5, 6]  # An epoch of more than a pass.


def test_array_passes_are_numbered_on():
    model = toy.private(toy.linear())
    for _ in range(2):
        model.fit(X, Y, batch_size=5, sampling=Shuffled(), epochs=2, verbose=0)
    assert passes(model) == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3  # 5 + 5 + 2 examples a pass.


def test_random_allocation_is_charged_by_the_pass():
    model = toy.private(toy.linear())
    for _ in range(2):
        model.fit(X, Y, batch_size=5, sampling=RandomAllocation(), epochs=2, verbose=0)
    model.fit(X, Y, sampling=RandomAllocation(3), steps_per_epoch=6, verbose=0)
    assert passes(model) == [number for number in range(6) for _ in range(3)]
    assert {event.sampling.num_steps for event in toy.events(model)} == {3}

    class Stops(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            self.model.stop_training = True

    # An epoch that ends early is charged whole.
    model.fit(X, Y, batch_size=5, sampling=RandomAllocation(), callbacks=[Stops()], verbose=0)
    assert passes(model)[18:] in ([6], [6, 6, 6])
    whole = RDPAccountant()
    for event in toy.events(model):
        whole.compose(dataclasses.replace(event, event=tfdp.events.GaussianSumEvent(1.0, 2.0)))
    assert whole._terms() == [(AllocatedGaussian(3, 2.0), 7)]


@pytest.mark.parametrize("steps", [1, 2, 4])
def test_an_epoch_of_random_allocation_is_whole_passes(steps):
    model = toy.private(toy.linear())
    with pytest.raises(ValueError, match="steps_per_epoch must be a multiple"):
        model.fit(X, Y, sampling=RandomAllocation(3), steps_per_epoch=steps, verbose=0)
    declared = RandomAllocation(3, population_size=N)
    with pytest.raises(ValueError, match="steps_per_epoch must be a multiple"):
        model.fit(dataset().repeat(), sampling=declared, steps_per_epoch=steps, verbose=0)
    undeclared = RandomAllocation(population_size=N)
    with pytest.raises(ValueError, match="Declare the number of steps"):
        model.fit(dataset().repeat(), sampling=undeclared, steps_per_epoch=steps, verbose=0)
    assert model.ledger.total_count == 0


def rows_of_batches(monkeypatch, model, **arguments):
    """Returns how many rows the batches of an epoch of `fit` have, and how many traces it takes."""
    drawn, traces = [], []
    of_arrays = distributed_data.samples_of

    def samples_of(*args, **kwargs):
        samples = of_arrays(*args, **kwargs)

        def noted():
            for parts in samples.make():
                drawn.append(len(parts[-1]))
                yield parts

        return samples._replace(make=noted)

    def loss(y, y_pred):
        traces.append(y_pred)
        return keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)

    monkeypatch.setattr(distributed_data, "samples_of", samples_of)
    model.compile(model.optimizer, loss, jit_compile=arguments.pop("jit_compile", False))
    x, y = np.tile(X, [20, 1]), np.tile(Y, 20)
    model.fit(x, y, batch_size=40, verbose=0, **arguments)
    first = len(traces)
    model.fit(x, y, batch_size=40, epochs=3, verbose=0, **arguments)
    assert len(traces) == first  # Samples of other sizes are the same graph.
    assert model.ledger.total_count == len(drawn) == 4 * 6
    return drawn


def test_samples_are_padded_a_little_without_xla_and_to_one_size_where_that_is_asked_for(
    monkeypatch,
):
    policy = Poisson().resolve(20 * N, 40)
    assert (policy.padded_size, policy.size_step) == (64, 4)
    little = rows_of_batches(monkeypatch, toy.private(toy.linear()))
    # 40 +- 5.8 of 240: one size in all 24 steps is less likely than 10^-12.
    assert len(set(little)) > 1 and all(rows % 4 == 0 for rows in little)
    constant = rows_of_batches(monkeypatch, toy.private(toy.linear()), constant_batch_size=True)
    # A sample of more than 64 comes once in 6,000 epochs.
    assert all(rows % 64 == 0 for rows in constant)
    compiled = rows_of_batches(monkeypatch, toy.private(toy.linear()), jit_compile=True)
    assert all(rows % 64 == 0 for rows in compiled)


def test_microbatches_are_drawn_among_rows_whose_number_says_nothing_of_the_sample(monkeypatch):
    drawn = rows_of_batches(monkeypatch, toy.private(toy.linear(), toy.dp(num_microbatches=4)))
    assert all(rows % 64 == 0 for rows in drawn)
    model = toy.private(toy.linear(), toy.dp(num_microbatches=4))
    with pytest.raises(ValueError, match="Microbatches need samples that are padded"):
        model.fit(X, Y, constant_batch_size=False, verbose=0)


SAMPLES = ([], [3], [0, 1, 2], [], range(N), [7, 4])


@pytest.mark.parametrize("physical_batch_size", [None, 2])
@pytest.mark.parametrize("constant", [None, True])
def test_samples_of_no_one_and_few_records_are_the_steps_by_hand(
    monkeypatch, constant, physical_batch_size
):
    monkeypatch.setattr(Poisson, "draw", lambda *_: (np.array(s, np.int64) for s in SAMPLES))
    optimizer = toy.dp(physical_batch_size=physical_batch_size)
    model, by_hand = toy.private(optimizer=optimizer), toy.private()
    model.fit(X, Y, batch_size=2, verbose=0, constant_batch_size=constant)
    for sample in SAMPLES:
        losses = [lambda i=i: crossentropy(by_hand, i) for i in sample]
        after, _ = toy.step_by_hand(by_hand, losses)
        for variable, value in zip(by_hand.trainable_variables, after, strict=True):
            variable.assign(value)
    toy.assert_weights(model, toy.weights(by_hand))
    (entry,) = model.ledger
    assert entry.count == len(SAMPLES)


def test_constant_batch_size_is_about_arrays_and_a_bool():
    model = toy.private(toy.linear())
    with pytest.raises(TypeError, match="must be a bool"):
        model.fit(X, Y, constant_batch_size=1, verbose=0)
    with pytest.raises(ValueError, match="fit draws from arrays"):
        model.fit(dataset(), sampling=Unknown(), constant_batch_size=True, verbose=0)
    assert model.ledger.total_count == 0


def test_passes_over_arrays_see_every_record_once():
    # Gradients of a linear loss do not depend on the weights: the order of records is no matter.
    model = toy.private(toy.linear(), loss=lambda y, y_pred: keras.ops.sum(y_pred, axis=-1))
    losses = [lambda i=i: tf.reduce_sum(model(X[i : i + 1])) for i in range(N)]
    expected, _ = toy.step_by_hand(model, losses)
    model.fit(X, Y, batch_size=5, sampling=Shuffled(), verbose=0)
    toy.assert_weights(model, expected)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 3

    def __getitem__(self, index):
        return X[4 * index : 4 * index + 4], Y[4 * index : 4 * index + 4]


def test_py_dataset():
    model = toy.private(toy.linear())
    model.fit(Batches(), sampling=Shuffled(batch_size=4, population_size=N), epochs=2, verbose=0)
    assert passes(model) == [0, 0, 0, 1, 1, 1]


def test_generator():
    def generator():
        while True:
            yield X[:4], Y[:4]

    model = toy.private(toy.linear())
    expected, _ = toy.step_by_hand(model, [lambda i=i: crossentropy(model, i) for i in range(4)])
    model.fit(generator(), sampling=Unknown(), steps_per_epoch=1, verbose=0)
    toy.assert_weights(model, expected)
    assert model.ledger.total_count == 1


def test_data_set_of_sequences_of_any_length():
    model = toy.private(
        keras.Sequential([keras.Input((None, 4)), L.GlobalAveragePooling1D(), L.Dense(2)])
    )
    lengths = tf.data.Dataset.from_generator(
        lambda: ((X[None, : 2 + i], Y[:1]) for i in range(2)),
        output_signature=(tf.TensorSpec([None, None, 4]), tf.TensorSpec([None], tf.int32)),
    )
    model.fit(
        lengths.apply(tf.data.experimental.assert_cardinality(2)), sampling=Unknown(), verbose=0
    )
    assert model.ledger.total_count == 2


@dataclasses.dataclass(frozen=True)
class QuarterOfAll(SamplingPolicy):
    """Samples of a size of its own, whatever `batch_size` is."""

    population_size: int | None = None
    neighboring_relation: NeighboringRelation = NeighboringRelation.ZERO_OUT

    def resolve(self, population_size, batch_size):
        return dataclasses.replace(self, population_size=population_size)

    @property
    def expected_batch_size(self):
        return None if self.population_size is None else self.population_size / 4

    def description(self, pass_index):
        return PoissonSampling(0.25, self.population_size)

    def draw(self, generator):
        while True:
            yield np.flatnonzero(generator.random(self.population_size) < 0.25)


@pytest.mark.parametrize(("denominator", "said"), [(16, False), (32, True)])
def test_denominator_is_compared_with_what_a_policy_of_ones_own_draws(denominator, said, caplog):
    query = tfdp.GaussianAverageQuery(1.0, stddev=1.0, denominator=denominator)
    model = toy.private(toy.linear(), tfdp.keras.DPOptimizer(keras.optimizers.SGD(0.1), query))
    x = np.ones((64, 4), "float32")
    with caplog.at_level(logging.WARNING, "tfdp"):
        model.fit(x, np.zeros(64, "int32"), sampling=QuarterOfAll(), verbose=0)
    assert ("16 records on average" in caplog.text) == said
    assert "32 records" not in caplog.text


HIDDEN = NeighboringRelation.ADD_OR_REMOVE_ONE


def moved_by_units(n, **kwargs):
    """Returns how far a step on all of n examples, in units of which the third is opposed to the
    others, moves a model.
    """
    optimizer = tfdp.keras.DPOptimizer(
        *(keras.optimizers.SGD(1.0), toy.query(denominator=1), 4), privacy_unit="microbatch"
    )
    plain = keras.Sequential([keras.Input((1,)), L.Dense(1, use_bias=False)])
    model = toy.private(plain, optimizer, loss=lambda y, p: p[:, 0])
    x = np.full((n, 1), 9.0, "float32")
    x[16:24] = -9.0
    before = toy.weights(model)[0]
    sampling = tfdp.sampling.FullBatch(neighboring_relation=HIDDEN)
    model.fit(x, np.zeros(n), sampling=sampling, verbose=0, **kwargs)
    return (before - toy.weights(model)[0]).item(), list(model.ledger)


def test_units_of_a_hidden_population_are_as_large_as_was_told():
    moves, ledgers = zip(*(moved_by_units(n, batch_size=32) for n in (32, 33, 40)), strict=True)
    np.testing.assert_allclose(moves, [2, 3, 3], rtol=1e-4)  # Once the bound for one unit more.
    assert ledgers[0] == ledgers[1] == ledgers[2]


@pytest.mark.parametrize("n", [32, 33])
def test_units_of_a_hidden_population_do_not_follow_it(n):
    with pytest.raises(ValueError, match="Give batch_size, a public") as caught:
        moved_by_units(n)
    assert str(n) not in str(caught.value)


def test_units_of_several_examples_are_refused_in_several_processes(monkeypatch):
    monkeypatch.setattr(distribution, "num_workers", lambda strategy: 2)
    policy, raised = Poisson().resolve(N // 2, 2), distributed_data.Raised()
    strategy = tf.distribute.get_strategy()
    with pytest.raises(NotPrivateError, match="spread over replicas"):
        distributed_data.samples(strategy, (X, Y, None), policy, 2, 3, raised)


def test_users_and_data_sets_are_refused_in_several_processes(monkeypatch):
    monkeypatch.setattr(distribution, "num_workers", lambda strategy: 2)
    policy, raised = Poisson().resolve(N // 3, 2), distributed_data.Raised()
    strategy, users = tf.distribute.get_strategy(), Users(np.arange(N) // 3, 3)
    with pytest.raises(NotPrivateError, match="none knows all rows of a user"):
        distributed_data.samples(strategy, (X, Y, None), policy, 1, 3, raised, users)
    with pytest.raises(NotPrivateError, match="a record could be in a step twice"):
        distributed_data.check_dataset(strategy, dataset())


def _endless():
    while True:
        for start in range(0, N, 4):
            yield X[start : start + 4], Y[start : start + 4]


@pytest.mark.parametrize(
    "make", [lambda: dataset().repeat(), _endless], ids=["repeat", "generator"]
)
def test_no_number_is_of_two_passes_that_go_on_over_epochs(make):
    """A unit in the last step of a pass and the first of the next would be charged once for both,
    where these have less noise than others.
    """
    model = toy.private(toy.linear())
    policy = Shuffled(batch_size=4, population_size=N)
    for steps in range(1, 6):
        taken = len(toy.events(model))
        model.fit(make(), sampling=policy, epochs=3, steps_per_epoch=steps, verbose=0)
        real_of = {}
        for step, number in enumerate(passes(model)[taken:]):
            real_of.setdefault(number, set()).add(step // 3)
        assert all(len(real) == 1 for real in real_of.values()), steps


def test_only_what_has_no_end_is_known_to_go_on():
    endless, ends = dataset().repeat(), dataset()
    for data, steps, found in (
        (endless, 2, True),
        (ends, 2, None),
        (ends, None, False),
        (ends.filter(lambda x, y: True), 2, None),
        (_endless(), 2, True),
        (_endless(), None, True),
        (Batches(), 2, None),
    ):
        assert fit_data._goes_on(data, steps) is found
