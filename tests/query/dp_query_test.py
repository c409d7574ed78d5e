"""tfdp.query.dp_query: what classes of other packages inherit, and what they do not."""

import keras
import pytest
import tensorflow as tf

import tfdp
from tfdp.query import DPQuery, WeightedSumQuery


class _Half:
    """Of a query whose records are half as long, and whose event says so."""

    def derive_event(self, global_state):
        return tfdp.GaussianSumEvent(global_state.l2_norm_clip / 2, global_state.stddev)


class _Mixin:
    def preprocess_record(self, params, record):
        return super().preprocess_record(params / 2, record)


class HalfOfRecords(_Half, tfdp.GaussianSumQuery):
    def preprocess_record(self, params, record):
        return super().preprocess_record(params / 2, record)


class MixedIn(_Half, _Mixin, tfdp.GaussianSumQuery):
    pass


class Derived(HalfOfRecords):
    pass


class HalfOfSums(_Half, tfdp.GaussianSumQuery):
    def accumulate_preprocessed_record(self, sample_state, preprocessed_record):
        halves = tf.nest.map_structure(lambda leaf: leaf / 2, preprocessed_record)
        return super().accumulate_preprocessed_record(sample_state, halves)


class SaysAnew(_Half, tfdp.GaussianSumQuery):
    num_norm_groups = 1

    def preprocess_record(self, params, record):
        return super().preprocess_record(params, record)

    def scale_factors(self, params, norms):
        return super().scale_factors(params / 2, norms)


HALVES = [HalfOfRecords, MixedIn, Derived, HalfOfSums, SaysAnew]


@pytest.fixture(scope="module")
def problem():
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(2)])
    loss = tfdp.gradients.ModelLoss(model, lambda y, z: 1000 * tf.reduce_sum((y - z) ** 2))
    return loss, model.trainable_variables, (tf.ones([1, 3]), tf.fill([1, 2], 9.0))


@pytest.mark.parametrize("engine", ["auto", "bookkeeping", "vectorized", "loop"])
@pytest.mark.parametrize("wrap", [lambda q: q, lambda q: tfdp.NormalizedQuery(q, 2.0)])
@pytest.mark.parametrize("kind", HALVES)
def test_every_engine_calls_the_methods_of_a_derived_query(problem, kind, wrap, engine):
    # Engines by norms took the clip of the class that it is derived from: twice what was charged.
    loss, variables, data = problem
    query = wrap(kind(1.0, 1.0))
    state = tfdp.clipped_gradient_sum(loss, variables, data, query, engine=engine).sample_state
    bound = query.derive_event(query.initial_global_state()).l2_norm_bound
    assert bound == 0.5
    assert float(tf.linalg.global_norm(tf.nest.flatten(state))) == pytest.approx(0.5, rel=1e-5)


def test_a_derived_query_is_what_it_says():
    expected = {HalfOfRecords: (None, True), Derived: (None, True), HalfOfSums: (None, False)}
    for kind, (groups, is_sum) in {**expected, SaysAnew: (1, True)}.items():
        query = kind(1.0, 1.0)
        assert (query.num_norm_groups, query.is_sum) == (groups, is_sum)
    with pytest.raises(TypeError, match="must be a DPQuery that sums"):
        WeightedSumQuery(HalfOfSums(1.0, 1.0), 1.0)


def test_what_a_query_of_its_own_says_stays():
    class Plain(tfdp.SumAggregationDPQuery):
        num_norm_groups = 3

        def preprocess_record(self, params, record):
            return record

        get_noised_result = derive_event = None

    assert Plain.num_norm_groups == 3
    assert Plain.is_sum is tfdp.SumAggregationDPQuery.is_sum


@pytest.mark.parametrize("base", [tfdp.GaussianSumQuery, tfdp.NormalizedQuery, DPQuery])
def test_a_method_that_nobody_calls_is_refused(base):
    def accumulate_record(self, params, sample_state, record):
        return sample_state

    with pytest.raises(TypeError, match="Own must not have an accumulate_record of its own"):
        type("Own", (base,), {"accumulate_record": accumulate_record, "__module__": __name__})
