"""Embeddings against the explicit loop: adapted, tied, long, and large."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tests.gradients.problems import (
    BATCH,
    TOKENS,
    assert_agrees_for_any_length,
    assert_engines_agree,
    assert_tokens_agree,
    problem,
    token_model,
)
from tfdp.gradients import explain

L = keras.layers


def lora_embedding():
    layer = L.Embedding(7, 4)
    layer.build()
    layer.enable_lora(2)
    for v in layer.trainable_variables:
        v.assign(np.random.default_rng(5).normal(size=v.shape))
    return layer


def tied(tie_weights, **kwargs):
    keras.utils.set_random_seed(1)
    x = keras.Input((5,), dtype="int32")
    embedding = L.ReversibleEmbedding(7, 4, tie_weights=tie_weights, **kwargs)
    return keras.Model(x, L.GlobalAveragePooling1D()(embedding(embedding(x), reverse=True)))


MODELS = {
    "embedding": lambda: token_model(L.Embedding(7, 4)),
    "embedding_lora": lambda: token_model(lora_embedding()),
    "capped": lambda: tied(True, logit_soft_cap=0.05),
    "tied": lambda: tied(True),
    "untied": lambda: tied(False),
}
RULES = {
    "embedding": "EmbeddingRule",
    "embedding_lora": "EmbeddingRule",
    # A function of the logits has no rule.
    "capped": "on the batch, with weights of its own: embeddings",
}


@pytest.mark.parametrize("name", sorted(MODELS))
def test_embedding(name):
    if name in ("capped", "tied", "untied") and not hasattr(L, "ReversibleEmbedding"):
        pytest.skip("Keras before 3.13 has no ReversibleEmbedding.")
    model = MODELS[name]()
    said = explain(model).split("\n")[0].split(": ", 1)[1]
    assert said == RULES.get(name, "ReversibleEmbeddingRule")
    assert_tokens_agree(model, TOKENS)


def test_embedding_of_ids_along_two_axes():
    keras.utils.set_random_seed(1)
    ids = keras.Input((None, 5), dtype="int32")
    rows = keras.ops.sum(L.Embedding(7, 4)(ids), (1, 2))
    tokens = np.stack([TOKENS, TOKENS[::-1], TOKENS[:, ::-1]], 1).astype("int32")
    example = problem(keras.Model(ids, L.Dense(2)(rows)), tokens)
    assert_engines_agree(*example)
    assert_agrees_for_any_length(*example)


def test_embedding_of_long_sequences_is_sorted():
    tokens = np.random.default_rng(0).integers(0, 50, (BATCH, 300))
    layers = [L.Embedding(50, 3), L.GlobalAveragePooling1D(), L.Dense(2)]
    model = keras.Sequential([keras.Input((300,), dtype="int32"), *layers])
    assert_tokens_agree(model, tokens)


def test_embedding_makes_no_tensor_of_batch_and_vocabulary():
    model = keras.Sequential(
        [keras.Input((5,), dtype="int32"), L.Embedding(250_000, 2), L.Flatten(), L.Dense(2)]
    )
    loss, variables, examples = problem(model, TOKENS)
    query = tfdp.GaussianSumQuery(1.0, 1.0)

    @tf.function(autograph=False)
    def step():
        return tfdp.clipped_gradient_sum(loss, variables, examples, query, engine="bookkeeping")

    def largest(graph):
        shapes = [t.shape for op in graph.get_operations() for t in op.outputs]
        return max(s.num_elements() for s in shapes if s.is_fully_defined())

    assert largest(step.get_concrete_function().graph) == 250_000 * 2
