"""Layers of KerasHub in the book-keeping engine: none runs record by record, and gradients are the
loop's. Weights are random; the shapes of the models are those of their presets.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
from tfdp.gradients import ModelLoss, explain

models = pytest.importorskip("keras_hub").models

# KerasHub's own T5 warns of these.
pytestmark = [
    pytest.mark.filterwarnings("ignore:Layer '.*' looks like it has unbuilt state"),
    pytest.mark.filterwarnings("ignore:Layer '.*' .* was passed an input with a mask"),
]

ROWS, LENGTH = 4, 8
TOKENS = np.random.default_rng(0).integers(1, 9, (ROWS, LENGTH)).astype("int32")
IDS = {"token_ids": TOKENS, "padding_mask": TOKENS > 1}
IMAGES = np.random.default_rng(0).normal(size=(ROWS, 8, 8, 3)).astype("float32")

TEXT = {"vocabulary_size": 9, "num_layers": 1, "hidden_dim": 8, "intermediate_dim": 16}
ENCODER = {**TEXT, "num_heads": 2, "max_sequence_length": LENGTH}
DECODER = {**TEXT, "num_query_heads": 2, "num_key_value_heads": 1}


def bert(dropout, dtype):
    backbone = models.BertBackbone(**ENCODER, dropout=dropout, dtype=dtype)
    model = models.BertTextClassifier(backbone, 2, preprocessor=None, dropout=dropout)
    return model, {**IDS, "segment_ids": 0 * TOKENS}


def gpt2(dropout, dtype):
    backbone = models.GPT2Backbone(**ENCODER, dropout=dropout, dtype=dtype)
    return models.GPT2CausalLM(backbone, preprocessor=None), IDS


def gemma(dropout, dtype):
    backbone = models.GemmaBackbone(**DECODER, head_dim=4, dropout=dropout, dtype=dtype)
    return models.GemmaCausalLM(backbone, preprocessor=None), IDS


def gemma3(dropout, dtype):
    sizes = {**DECODER, "head_dim": 4, "image_size": 16, "vision_encoder": None}
    backbone = models.Gemma3Backbone(**sizes, dropout=dropout, dtype=dtype)
    return models.Gemma3CausalLM(preprocessor=None, backbone=backbone), IDS


def llama(dropout, dtype):
    backbone = models.LlamaBackbone(**DECODER, dropout=dropout, dtype=dtype)
    return models.LlamaCausalLM(backbone, preprocessor=None), IDS


def mistral(dropout, dtype):
    backbone = models.MistralBackbone(**DECODER, sliding_window=4, dropout=dropout, dtype=dtype)
    return models.MistralCausalLM(backbone, preprocessor=None), IDS


def qwen3(dropout, dtype):
    backbone = models.Qwen3Backbone(**DECODER, head_dim=4, dropout=dropout, dtype=dtype)
    return models.Qwen3CausalLM(backbone, preprocessor=None), IDS


def roberta(dropout, dtype):
    backbone = models.RobertaBackbone(**ENCODER, dropout=dropout, dtype=dtype)
    return models.RobertaTextClassifier(backbone, 2, preprocessor=None, dropout=dropout), IDS


def deberta_v3(dropout, dtype):
    backbone = models.DebertaV3Backbone(**ENCODER, bucket_size=3, dropout=dropout, dtype=dtype)
    return models.DebertaV3TextClassifier(backbone, 2, preprocessor=None, dropout=dropout), IDS


def albert(dropout, dtype):
    sizes = {**ENCODER, "embedding_dim": 8, "num_groups": 1}
    backbone = models.AlbertBackbone(**sizes, dropout=dropout, dtype=dtype)
    model = models.AlbertTextClassifier(backbone, 2, preprocessor=None, dropout=dropout)
    return model, {**IDS, "segment_ids": 0 * TOKENS}


def fnet(dropout, dtype):
    sizes = {**TEXT, "max_sequence_length": LENGTH}
    backbone = models.FNetBackbone(**sizes, dropout=dropout, dtype=dtype)
    model = models.FNetTextClassifier(backbone, 2, preprocessor=None, dropout=dropout)
    return model, {"token_ids": TOKENS, "segment_ids": 0 * TOKENS}


def opt(dropout, dtype):
    backbone = models.OPTBackbone(**ENCODER, dropout=dropout, dtype=dtype)
    return models.OPTCausalLM(backbone, preprocessor=None), IDS


def bloom(dropout, dtype):
    sizes = {**TEXT, "num_heads": 2}
    backbone = models.BloomBackbone(**sizes, dropout=dropout, dtype=dtype)
    return models.BloomCausalLM(backbone, preprocessor=None), IDS


def falcon(dropout, dtype):
    backbone = models.FalconBackbone(
        9, 1, 2, 8, 16, 0.0, attention_dropout_rate=dropout, dtype=dtype
    )
    return models.FalconCausalLM(backbone, preprocessor=None), IDS


def phi3(dropout, dtype):
    backbone = models.Phi3Backbone(**DECODER, dropout=dropout, dtype=dtype)
    return models.Phi3CausalLM(backbone, preprocessor=None), IDS


def t5(dropout, dtype):
    backbone = models.T5Backbone(**TEXT, num_heads=2, key_value_dim=4, dropout=dropout, dtype=dtype)
    model = keras.Model(backbone.input, backbone.output["decoder_sequence_output"])
    model.backbone = backbone
    return model, {
        "encoder_token_ids": TOKENS,
        "encoder_padding_mask": TOKENS > 1,
        "decoder_token_ids": TOKENS[:, ::-1],
        "decoder_padding_mask": TOKENS[:, ::-1] > 0,
    }


def vit(dropout, dtype):
    sizes = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
    backbone = models.ViTBackbone(
        image_shape=(8, 8, 3), patch_size=4, **sizes, dropout_rate=dropout, dtype=dtype
    )
    return models.ViTImageClassifier(backbone, 2, preprocessor=None), IMAGES


def model_of(build, lora, dropout=0.0, dtype="float32"):
    """Returns a model whose weights are all random, what it is called on, and its backbone."""
    keras.utils.set_random_seed(3)
    model, x = build(dropout, dtype)
    if lora:
        model.backbone.enable_lora(2)
    rng = np.random.default_rng(1)
    for v in model.trainable_variables:
        v.assign(v.numpy() + 0.3 * rng.normal(size=v.shape))
    return model, x


BUILDS = [
    *(albert, bert, bloom, deberta_v3, falcon, fnet, gemma, gemma3, gpt2, llama, mistral, opt),
    *(phi3, qwen3, roberta, t5, vit),
]
# `enable_lora` looks for layers by name, and finds none in T5.
MODELS = pytest.mark.parametrize(
    ("build", "lora"),
    [
        pytest.param(build, lora, id=f"{build.__name__}-{'lora' if lora else 'full'}")
        for build in BUILDS
        for lora in (False, True)
        if not (build is t5 and lora)
    ],
)


@pytest.mark.parametrize("dtype", ["float32", "mixed_bfloat16"])
@MODELS
def test_no_layer_runs_record_by_record(build, lora, dtype):
    # In mixed precision, KerasHub's own Gemma fails where there is dropout.
    model, x = model_of(build, lora, dropout=0.1 if dtype == "float32" else 0.0, dtype=dtype)
    lines = explain(model)
    assert lines == explain(model, x)
    assert "record by record" not in lines
    assert lines.count("Rule") >= 3


@MODELS
def test_clipped_sum_is_that_of_the_loop(build, lora):
    model, x = model_of(build, lora)
    functional = keras.Model(model.input, model.output)

    def loss(y, outputs):
        return tf.reduce_sum(tf.square(outputs[..., 0] - 0.3)) * tf.reduce_sum(y)

    y = tf.constant(np.logspace(-2, 1, ROWS)[:, None], tf.float32)
    query = tfdp.GaussianSumQuery(0.5, 1.0)

    def clipped(engine):
        total = tfdp.clipped_gradient_sum(
            ModelLoss(functional, loss),
            functional.trainable_variables,
            (tf.nest.map_structure(tf.constant, x), y),
            query,
            engine=engine,
        )
        return [leaf.numpy() for leaf in tf.nest.flatten(total.sample_state)]

    moved, expected = clipped("bookkeeping"), clipped("loop")
    largest = max(np.max(np.abs(leaf)) for leaf in expected)
    assert largest > 1e-3
    for mine, other in zip(moved, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=0, atol=1e-4 * largest)
