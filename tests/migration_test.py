"""Every name of TensorFlow Privacy is here, or says what to write, and is in docs/migration.md."""

import functools
import pathlib
import re

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfdp
import tfdp.keras
from tfdp.migration import WRITE

DOCS = pathlib.Path(__file__).parents[1] / "docs"
DOC = (DOCS / "migration.md").read_text(encoding="utf-8")

# What `import tensorflow_privacy` exports (version 0.9), and `tensorflow_privacy.v1`.
EXPORTED = """
compute_dp_sgd_privacy compute_dp_sgd_privacy_statement compute_rdp_tree_restart
compute_rdp_single_tree compute_zcdp_single_tree DPQuery SumAggregationDPQuery
DiscreteGaussianSumQuery DistributedDiscreteGaussianSumQuery DistributedSkellamSumQuery
GaussianSumQuery NestedQuery NoPrivacyAverageQuery NoPrivacySumQuery NormalizedQuery
QuantileEstimatorQuery NoPrivacyQuantileEstimatorQuery QuantileAdaptiveClipSumQuery
QAdaClipTreeResSumQuery restart_query tree_aggregation RestartQuery TreeCumulativeSumQuery
TreeResidualSumQuery TreeRangeSumQuery DNNClassifier DPModel DPSequential make_dp_model_class
GenericDPAdagradOptimizer GenericDPAdamOptimizer GenericDPSGDOptimizer DPKerasAdagradOptimizer
DPFTRLTreeAggregationOptimizer DPKerasAdamOptimizer DPKerasSGDOptimizer
make_gaussian_query_optimizer_class make_keras_generic_optimizer_class make_keras_optimizer_class
VectorizedDPKerasAdagradOptimizer VectorizedDPKerasAdamOptimizer VectorizedDPKerasSGDOptimizer
make_vectorized_keras_optimizer_class linearly_separable_labeled_examples
synthetic_linearly_separable_data logistic_objective_perturbation logistic_dpsgd
single_layer_softmax_classifier DNNClassifierV1 DPAdagradGaussianOptimizer DPAdagradOptimizer
DPAdamGaussianOptimizer DPAdamOptimizer DPGradientDescentGaussianOptimizer
DPGradientDescentOptimizer make_optimizer_class VectorizedDPAdagradOptimizer
VectorizedDPAdamOptimizer VectorizedDPSGDOptimizer VectorizedDPAdagrad VectorizedDPAdam
VectorizedDPSGD make_vectorized_optimizer_class GaussianAverageQuery PrivacyLedger QueryWithLedger
DenseLedger compute_noise
""".split()


@pytest.mark.parametrize("name", EXPORTED)
def test_name_is_here_or_says_what_to_write(name):
    assert re.search(rf"\b{name}\b", DOC), f"docs/migration.md does not have {name}."
    if name in tfdp.__all__:
        assert name not in WRITE
        return
    with pytest.raises(AttributeError, match=f"has no attribute '{name}'. ") as error:
        getattr(tfdp, name)
    assert WRITE[name] in str(error.value)


@pytest.mark.parametrize("name", WRITE)
def test_what_is_to_be_written_exists(name):
    for path in re.findall(r"\btfdp((?:\.\w+)+)", WRITE[name]):
        here = tfdp
        for part in path.split(".")[1:]:
            here = getattr(here, part, None)
        assert here is not None, f"There is no tfdp{path}."


@pytest.mark.parametrize("name", sorted(set(tfdp.keras.__all__) - set(tfdp.__all__)))
def test_name_of_tfdp_keras_says_where_it_is(name):
    with pytest.raises(AttributeError, match=rf"{name}'\. Write tfdp\.keras\.{name}\b"):
        getattr(tfdp, name)


OPACUS_MAIN = """
PrivacyEngine make_private_with_epsilon get_noise_multiplier get_epsilon GradSampleModule
DPDataLoader BatchMemoryManager ModuleValidator RDPAccountant PRVAccountant GaussianAccountant
""".split()


@pytest.mark.parametrize("name", OPACUS_MAIN)
def test_main_name_of_opacus_says_what_to_write(name):
    assert name in OF_OPACUS
    with pytest.raises(AttributeError, match=rf"has no attribute '{name}'\. \w"):
        getattr(tfdp, name)


def test_other_names_say_no_more():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'$"):
        tfdp.nothing  # noqa: B018


_SPECS = [tf.TensorSpec([2], tf.float32)]
# Calls as TensorFlow Privacy takes them, and what a message has to name.
_OLD_CALLS = {
    "sum_stddev": (
        lambda: tfdp.GaussianAverageQuery(l2_norm_clip=1.0, sum_stddev=1.0, denominator=2),
        ["sum_stddev", "stddev=...", "denominator=..."],
    ),
    "ledger of a population": (
        lambda: tfdp.PrivacyLedger(population_size=1000, selection_probability=0.1),
        ["population_size", "tfdp.PrivacyLedger()"],
    ),
    "ledger, by place": (lambda: tfdp.PrivacyLedger(1000, 0.1), ["tfdp.PrivacyLedger()"]),
    **{
        f"DPOptimizer, {argument}": (
            functools.partial(
                tfdp.keras.DPOptimizer,
                keras.optimizers.SGD(),
                **{argument: 1.0},
                num_microbatches=1,
            ),
            [argument, "query=tfdp.GaussianAverageQuery(", "keras.optimizers"],
        )
        for argument in ("l2_norm_clip", "noise_multiplier", "learning_rate")
    },
    "optimizer, by place": (
        lambda: tfdp.keras.DPKerasSGDOptimizer(1.0, 1.0, 1, 1, 0.1),
        ["learning_rate=0.1", "denominator=..."],
    ),
    "DP-FTRL": (
        lambda: tfdp.keras.DPFTRLTreeAggregationOptimizer(1.0, 1.0, _SPECS, 1),
        ["'period'", "num_steps=...", "period=..."],
    ),
    **{
        f"{name}, {call}": (
            functools.partial(make, getattr(tfdp.query, name)),
            [name, "build_l2_gaussian_query", "num_steps=...", "period=..."],
        )
        for name in ("TreeCumulativeSumQuery", "TreeResidualSumQuery")
        for call, make in {
            "by name": lambda query: query(
                record_specs=_SPECS, noise_generator=None, clip_fn=None, clip_value=1.0
            ),
            "by place": lambda query: query(_SPECS, None, None, 1.0, True),
        }.items()
    },
    **{
        f"{name}, built": (
            functools.partial(getattr(tfdp.query, name).build_l2_gaussian_query, 1.0, 1.0, _SPECS),
            ["build_l2_gaussian_query", "num_steps=...", "period=..."],
        )
        for name in ("TreeCumulativeSumQuery", "TreeResidualSumQuery")
    },
}


@pytest.mark.parametrize("name", _OLD_CALLS)
def test_old_call_says_what_to_write(name):
    call, words = _OLD_CALLS[name]
    with pytest.raises(TypeError) as error:
        call()
    for word in words:
        assert word in str(error.value)


_OPACUS = (DOCS / "opacus.md").read_text(encoding="utf-8")
# What the packages of Opacus 1.6.0 export, and the methods of its PrivacyEngine; of a name with
# FSDP or TP at its end, the one without.
OF_OPACUS = """
PrivacyEngine make_private make_private_with_epsilon get_epsilon is_compatible validate
get_compatible_module save_checkpoint load_checkpoint get_noise_multiplier
GradSampleModule GradSampleModuleFastGradientClipping GradSampleModuleExpandedWeights
GradSampleModuleNoOp AbstractGradSampleModule GradSampleHooks GradSampleHooksFastGradientClipping
GradSampleHooksNoOp AbstractGradSampleHooks register_grad_sampler register_norm_sampler
create_or_accumulate_grad_sample prepare_module wrap_model get_gsm_class
DPOptimizer DPOptimizerFastGradientClipping DPPerLayerOptimizer SimpleDistributedPerLayerOptimizer
AdaClipDPOptimizer DistributedDPOptimizer DistributedDPOptimizerFastGradientlipping
FSDPOptimizerFastGradientClipping average_gradients DifferentiallyPrivateDistributedDataParallel
IAccountant GaussianAccountant RDPAccountant PRVAccountant register_accountant create_accountant
ExponentialGradClip LambdaGradClip StepGradClip ExponentialNoise LambdaNoise StepNoise
DPRNN DPGRU DPLSTM DPMultiheadAttention RenameParamsMixin SequenceBias
ModuleValidator register_module_validator register_module_fixer
DPDataLoader CollateFnWithEmpty wrap_collate_with_empty switch_generator
BatchMemoryManager wrap_data_loader UniformWithReplacementSampler
DistributedUniformWithReplacementSampler
""".split()


@pytest.mark.parametrize("name", OF_OPACUS)
def test_name_of_opacus_has_a_row(name):
    rows = [line.split("|")[1] for line in _OPACUS.splitlines() if line.startswith("| ")]
    assert any(re.search(rf"[`.]{name}\b", row) for row in rows)


def _paths(text):
    """Returns the names of tfdp that a text holds, such as "query.per_layer"."""
    return sorted(set(re.findall(r"\btfdp\.((?:\w+\.)*\w+)", text)))


@pytest.mark.parametrize("path", _paths(_OPACUS))
def test_what_users_of_opacus_read_exists(path):
    here = tfdp
    for part in path.split("."):
        here = getattr(here, part, None)
    assert here is not None, f"There is no tfdp.{path}."


def test_a_name_that_does_not_exist_would_be_found():
    assert _paths("`tfdp.query.nothing(x)`, `tfdp.noise`") == ["noise", "query.nothing"]
    assert not hasattr(tfdp.query, "nothing")


def test_training_for_users_of_opacus_runs():
    code = re.findall(r"```python\n(.*?)```", _OPACUS, re.DOTALL)[1].replace(
        "epochs=20", "epochs=1"
    )
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    names = {"tfdp": tfdp, "keras": keras, "model": model}
    names |= {"x": np.zeros((512, 4)), "y": np.zeros((512, 2))}
    exec(compile(code, "docs/opacus.md", "exec"), names)
    assert names["model"].ledger.total_count == 2
    assert 2.9 < names["epsilon"] <= 3.0


_EXAMPLES = (DOCS / "migration_examples.md").read_text(encoding="utf-8")
_PAIRS = {
    title: (old, new)
    for title, old, new in re.findall(
        r"^## (.*?)$.*?```python\n(# TensorFlow Privacy\n.*?)```.*?```python\n(# tfdp\n.*?)```",
        _EXAMPLES,
        re.DOTALL | re.MULTILINE,
    )
}


def test_every_section_has_old_and_new_code():
    assert list(_PAIRS) == re.findall(r"^## (.*)$", _EXAMPLES, re.MULTILINE)


@pytest.mark.parametrize("name", EXPORTED)
def test_old_code_has_every_name(name):
    assert any(re.search(rf"\b{name}\b", old) for old, _ in _PAIRS.values())


@pytest.mark.parametrize("title", _PAIRS)
def test_new_code_runs(title):
    old, new = _PAIRS[title]
    compile(old, title, "exec")
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
    names = {
        **{"tfdp": tfdp, "keras": keras, "np": np, "tf": tf},
        "model": tfdp.keras.make_private(model),
        "x": np.zeros((512, 4), np.float32),
        "y": np.zeros((512, 2), np.float32),
        "records": [tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0])],
        "query": tfdp.GaussianSumQuery(1.0, 1.0),
        "loss": "mse",
        "inputs": model.inputs,
        "outputs": model.outputs,
        "MyModel": lambda: keras.Sequential([keras.layers.Dense(1)]),
    }
    if title == "Epsilon":
        exec(compile(_PAIRS["The ledger"][1], title, "exec"), names)
    exec(compile(new, title, "exec"), names)


def test_what_the_page_writes_exists():
    said = set(WRITE)  # `tfdp.x` that raises, and says what to write.
    for path in set(_paths(DOC)) - said:
        here = tfdp
        for part in path.split("."):
            here = getattr(here, part)
    tests = DOC.split("## Privacy tests")[1].split("\n## ")[0]
    rows = [line.split("|") for line in tests.splitlines() if line.startswith("| `")]
    names = {name for row in rows for name in re.findall(r"`(\w+)(?:\(|`)", row[2])}
    assert len(names) > 10
    assert names <= {*tfdp.audit.__all__}
