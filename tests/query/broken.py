"""Queries each of which breaks one promise, for the checkers to find."""

import tensorflow as tf

from tfdp import query as tfdp_query

# That of the queries that need one here.
CLIP = 1.5


class SkipsTheClip(tfdp_query.GaussianSumQuery):
    def preprocess_record(self, params, record):
        return record


class DoublesTheClip(tfdp_query.GaussianSumQuery):
    def derive_sample_params(self, global_state):
        return 2 * global_state.l2_norm_clip


class ClipsEachLeaf(tfdp_query.GaussianSumQuery):
    def preprocess_record(self, params, record):
        preprocess = super().preprocess_record
        return tf.nest.map_structure(lambda leaf: preprocess(params, leaf), record)


class LetsNaNThrough(tfdp_query.GaussianSumQuery):
    def preprocess_record(self, params, record):
        norm = tf.linalg.global_norm(tf.nest.flatten(record))
        factor = tf.minimum(1.0, params / tf.maximum(norm, 1e-30))
        return tf.nest.map_structure(lambda leaf: leaf * factor, record)


class DoesNotBoundTheWeight(tfdp_query.WeightedSumQuery):
    def preprocess_record(self, params, record):
        clipped = self.sum_query.preprocess_record(params, record.record)
        return tf.nest.map_structure(lambda leaf: leaf * record.weight, clipped)


class NegativeWeights(tfdp_query.WeightedSumQuery):
    def preprocess_record(self, params, record):
        clipped = self.sum_query.preprocess_record(params, record.record)
        weight = tf.minimum(record.weight, self.max_weight)
        return tf.nest.map_structure(lambda leaf: leaf * weight, clipped)


class IgnoresTheWeightInItsEvent(tfdp_query.WeightedSumQuery):
    def derive_event(self, global_state):
        return self.sum_query.derive_event(global_state)


class NoisesOneLeaf(tfdp_query.GaussianSumQuery):
    def get_noised_result(self, sample_state, global_state):
        result, state, event = super().get_noised_result(sample_state, global_state)
        leaves = [tf.nest.flatten(result)[0], *tf.nest.flatten(sample_state)[1:]]
        return tf.nest.pack_sequence_as(result, leaves), state, event


class HalvesTheNoise(tfdp_query.GaussianSumQuery):
    def get_noised_result(self, sample_state, global_state):
        event = self.derive_event(global_state)
        halved = global_state._replace(stddev=global_state.stddev / 2)
        result, _, _ = super().get_noised_result(sample_state, halved)
        return result, global_state, event


class RepeatsTheNoise(tfdp_query.GaussianSumQuery):
    """One draw for every coordinate."""

    def get_noised_result(self, sample_state, global_state):
        noise = global_state.stddev * tf.random.normal([])
        result = tf.nest.map_structure(lambda leaf: leaf + noise, sample_state)
        return result, global_state, self.derive_event(global_state)


class SkipsOneGroup(tfdp_query.NestedQuery):
    def preprocess_record(self, params, record):
        return [super().preprocess_record(params, record)[0], record[1]]


class JointlyClipsUnscaledNorms(tfdp_query.JointClippingQuery):
    def preprocess_record(self, params, record):
        norm = tf.linalg.global_norm(tf.nest.flatten(record))
        factor = CLIP / tf.maximum(norm, CLIP)
        return [
            tf.nest.map_structure(lambda leaf: leaf * factor / 0.25, record[0]),
            record[1] * factor / 4.0,
        ]


class CountsInFull(tfdp_query.QuantileAdaptiveClipSumQuery):
    def norm_statistics(self, params, norms):
        return 2 * super().norm_statistics(params, norms)


class CountsByHowMuch(tfdp_query.QuantileAdaptiveClipSumQuery):
    def norm_statistics(self, params, norms):
        return tf.cast(norms - params, tf.float64)


class ClipsInL2(tfdp_query.LaplaceSumQuery):
    def preprocess_record(self, params, record):
        return tfdp_query.GaussianSumQuery(self.l1_norm_clip, 2.0).preprocess_record(
            self.l1_norm_clip, record
        )


class NormalisesTheLargestLeaf(tfdp_query.AutomaticClippingSumQuery):
    def preprocess_record(self, params, record):
        norm = tf.reduce_max([tf.norm(leaf) for leaf in tf.nest.flatten(record)])
        return tf.nest.map_structure(lambda leaf: leaf * CLIP / (norm + 1e-9), record)
