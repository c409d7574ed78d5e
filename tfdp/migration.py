"""Names that `tfdp` does not have, and what to write in their place: those of TensorFlow Privacy,
the main ones of Opacus, and those of `tfdp.keras`.

docs/migration.md and docs/opacus.md have all names of the others, with what means the same and what
does not.
"""

_OPTIMIZER = "Write tfdp.keras.DPOptimizer(keras.optimizers.{0}(...), query)."
_VECTORIZED = (
    "Write tfdp.keras.DPKeras{0}Optimizer(...): every engine but the loop is vectorized, and "
    "engine='vectorized' is an option of DPOptimizer."
)
_COST = (
    "Replay the ledger of the run: tfdp.PrivacyLedger.load(path).replay("
    "tfdp.accounting.RDPAccountant()).get_epsilon(delta); before a run, tfdp.accounting.plan or "
    "`tfdp plan`."
)
_CLASSIC = "Write tfdp.keras.DPKeras{0}Optimizer: optimizers of TensorFlow 1 are not supported."
_OTHER = "It is not a part of tfdp; see docs/migration.md."

WRITE = {
    **{f"GenericDP{kind}Optimizer": _OPTIMIZER.format(kind) for kind in ("Adagrad", "Adam", "SGD")},
    **{
        f"VectorizedDPKeras{kind}Optimizer": _VECTORIZED.format(kind)
        for kind in ("Adagrad", "Adam", "SGD")
    },
    **{
        f"{name}{suffix}": _CLASSIC.format(kind)
        for name, kind in [
            ("DPAdagrad", "Adagrad"),
            ("DPAdam", "Adam"),
            ("DPGradientDescent", "SGD"),
            ("VectorizedDPAdagrad", "Adagrad"),
            ("VectorizedDPAdam", "Adam"),
            ("VectorizedDPSGD", "SGD"),
        ]
        for suffix in ("Optimizer", "GaussianOptimizer", "")
    },
    **dict.fromkeys(
        (
            "make_gaussian_query_optimizer_class",
            "make_keras_generic_optimizer_class",
            "make_keras_optimizer_class",
            "make_optimizer_class",
            "make_vectorized_keras_optimizer_class",
            "make_vectorized_optimizer_class",
        ),
        "No class is made: any Keras optimizer can be wrapped. " + _OPTIMIZER.format("Lion"),
    ),
    "make_dp_model_class": "Write tfdp.keras.make_private(model), or derive from DPModel.",
    "NoPrivacyQuantileEstimatorQuery": "Write tfdp.query.NoPrivacyQuantileEstimatorQuery(...).",
    "DPFTRLTreeAggregationOptimizer": (
        "Write tfdp.keras.DPFTRLTreeAggregationOptimizer(..., num_steps=..., period=...)."
    ),
    "RestartQuery": "Write tfdp.query.RestartQuery(...).",
    **{
        f"Tree{kind}SumQuery": f"Write tfdp.query.Tree{kind}SumQuery.build_l2_gaussian_query(..., "
        "num_steps=..., period=...)."
        for kind in ("Cumulative", "Residual")
    },
    **dict.fromkeys(
        ("compute_rdp_single_tree", "compute_rdp_tree_restart", "compute_zcdp_single_tree"), _COST
    ),
    "QAdaClipTreeResSumQuery": "No clip adapts under noise of a tree; see docs/migration.md.",
    "TreeQuantileEstimatorQuery": "Write tfdp.QuantileEstimatorQuery(...): its noise is no tree's.",
    "restart_query": "Import from tfdp.query.",
    "tree_aggregation": "Write tfdp.factorizations.BinaryTree(efficient).",
    "TreeRangeSumQuery": "Write tfdp.query.TreeRangeSumQuery(...).",
    "compute_dp_sgd_privacy": _COST,
    "compute_dp_sgd_privacy_statement": _COST + " For a statement in words: `tfdp report`.",
    "compute_noise": "Write tfdp.noise_for_budget(epsilon, delta, ...) or `tfdp calibrate`.",
    "QueryWithLedger": "Every query has its event; give DPOptimizer a ledger=tfdp.PrivacyLedger().",
    "DenseLedger": "Write tfdp.PrivacyLedger().",
    **dict.fromkeys(
        (
            "DNNClassifier",
            "DNNClassifierV1",
            "linearly_separable_labeled_examples",
            "logistic_dpsgd",
            "logistic_objective_perturbation",
            "single_layer_softmax_classifier",
            "synthetic_linearly_separable_data",
        ),
        _OTHER,
    ),
}

_IN_KERAS = (
    "AdamBC",
    "DPKerasAdagradOptimizer",
    "DPKerasAdamOptimizer",
    "DPKerasSGDOptimizer",
    "DPModel",
    "DPOptimizer",
    "DPSequential",
    "EpsilonLogger",
    "LedgerMismatchError",
    "NotPrivateError",
    "PrivacyBudget",
    "PrivacyBudgetExceededError",
    "PrivateAccuracy",
    "PrivateClassCounts",
    "PrivateLoss",
    "PrivateMean",
    "PrivateMetric",
    "clips_from_public_data",
    "convert_norm",
    "declare_weights",
    "make_private",
)
WRITE.update({name: f"Write tfdp.keras.{name}." for name in _IN_KERAS})

_ACCOUNTANT = (
    "Write tfdp.accounting.{0}Accountant(), for ledger.replay(accountant); see docs/opacus.md."
)
WRITE.update(
    {
        "PrivacyEngine": "Write tfdp.keras.make_private(model), and tfdp.keras.DPOptimizer(inner, "
        "query) around the optimizer; see docs/opacus.md.",
        "make_private_with_epsilon": "Write tfdp.keras.DPOptimizer.for_budget(...).",
        "get_noise_multiplier": "Write tfdp.noise_for_budget(epsilon, delta, ...) or `tfdp "
        "calibrate`.",
        "get_epsilon": "Write model.ledger.epsilon(delta).",
        "GradSampleModule": "Write tfdp.keras.make_private(model).",
        "DPDataLoader": "Nothing: `fit` draws Poisson samples from arrays. In a loop of your own "
        "write tfdp.sampling.batches(x, y, None, policy).",
        "BatchMemoryManager": "Write tfdp.keras.DPOptimizer(..., physical_batch_size=...).",
        "ModuleValidator": "Write tfdp.keras.convert_norm(model).",
        **{
            f"{there}Accountant": _ACCOUNTANT.format(here)
            for there, here in (("RDP", "RDP"), ("PRV", "PRV"), ("Gaussian", "GDP"))
        },
    }
)
