"""What readers of the documents are taken to have: the names before each block, and the files."""

import functools

import numpy as np

from tfdp.events import GaussianSumEvent, NeighboringRelation, PoissonSampling, SampledEvent
from tfdp.ledger import PrivacyLedger

# By page and number of the block, after what every block finds.
NAMES = {
    "every block": """
build_model = lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
model = tfdp.keras.make_private(build_model())
query = tfdp.GaussianAverageQuery(1.0, noise_multiplier=4.0, denominator=256)
inner, loss, batch_size, epochs, sigma = keras.optimizers.SGD(0.1), "mse", 16, 1, 1.0
model.compile(tfdp.keras.DPOptimizer(inner, query), loss)
inner = keras.optimizers.SGD(0.1)
x, y = np.zeros([512, 4], "float32"), np.zeros([512, 2], "float32")
period = steps_in_a_pass = 32
""",
    "docs/audit.md 0": """
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, activation="softmax")])
optimizer = tfdp.keras.DPOptimizer(inner, query)
learning_rate, denominator, y = 0.1, 256, np.zeros(512, int)
""",
    "docs/audit.md 1": """
from tests.docs_names import make_model
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(3, activation="softmax")])
y, members = np.arange(512) % 3, np.arange(512) % 2 == 0
""",
    "docs/engines.md 0": "class MyModel(keras.Model): pass",
    "docs/engines.md 1": "class Scale(keras.layers.Layer): pass",
    "docs/federated.md 1": """
data = {name: (x[:20], y[:20]) for name in "ab"}
model.compile(tfdp.keras.DPOptimizer(inner, query, privacy_unit="user"), loss)
server = tfdp.federated.Server(model, list(data), cohort_size=1)
""",
    "docs/federated.md 3": """
query = tfdp.query.secure_sum_query(
    l2_norm_clip=0.5, noise_multiplier=1.0, num_coordinates=10, num_records=50, min_contributors=40
)
query, clients = tfdp.NormalizedQuery(query, 50), list(range(50))
model.compile(tfdp.keras.DPOptimizer(inner, query, privacy_unit="user"), loss)
server = tfdp.federated.Server(model, clients, sampling=tfdp.sampling.FullBatch())
rounds = server.rounds(1)
round = next(rounds)
step, update = round.step, [np.ones([4, 2], "float32"), np.ones(2, "float32")]
total = np.sum([tfdp.federated.encoded(query, step, update) for _ in clients], axis=0)
""",
    "docs/ledger.md 1": """
inner, saved = keras.optimizers.Adam(), tfdp.keras.make_private(build_model())
with tfdp.PrivacyLedger.open("patients.ledger") as ledger:
    saved.compile(tfdp.keras.DPOptimizer(inner, query, ledger=ledger), loss)
    saved.fit(x, y, batch_size=256, verbose=0)
    saved.save_weights("last.weights.h5")
""",
    "docs/mechanisms.md 5": """
layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(1)]
""",
    "docs/mechanisms.md 9": """
model = tfdp.keras.make_private(
    keras.Sequential([keras.Input([4]), keras.layers.Dense(10, "softmax")])
)
loss, y = "sparse_categorical_crossentropy", np.zeros(512)
""",
    "docs/mechanisms.md 12": """
ledger, rates = tfdp.PrivacyLedger(), [0.1, 0.2]
plan = [(tfdp.GaussianSumEvent(1.0, 5.0), 3)]
def run(rate, own):
    own.append(*plan[0])
    return rate, "weights"
""",
    "docs/migration.md 1": """
build_model = lambda: keras.Sequential([keras.Input([4]), keras.layers.Dense(2, "softmax")])
y = np.zeros(512)
""",
    "docs/privacy.md 0": """
file = {"x": x, "y": y}
decode = lambda example: example
""",
    "docs/privacy.md 1": "user_ids = np.arange(512) // 4",
    "docs/privacy.md 2": "senders_and_receivers = np.arange(1024).reshape(512, 2) % 300",
    "docs/privacy.md 3": """
layers = [keras.Input([8, 8, 3]), keras.layers.Flatten(), keras.layers.Dense(2)]
model = tfdp.keras.make_private(keras.Sequential(layers))
model.compile(tfdp.keras.DPOptimizer(inner, query), loss)
x = np.zeros([512, 8, 8, 3], "float32")
""",
    "docs/selective.md 0": """
model, loss, data = build_model(), keras.losses.MeanSquaredError(), {"a": (x, y), "b": (x, y)}
""",
    "docs/statistics.md 0": """
rng = np.random.default_rng(0)
frame = {
    "age": rng.integers(18, 90, 2_000),
    "city": rng.choice(["Oslo", "Rome", "Lima"], 2_000),
    "income": rng.uniform(0, 200_000, 2_000),
    "height": rng.normal(size=2_000),
    "weight": rng.normal(size=2_000),
}
""",
    "docs/statistics.md 1": """
frame["customer"], budget = np.arange(2_000) // 4, Budget(epsilon=2.0, delta=1e-6)
""",
}


def make_model(x, y, seed):
    """Returns what predicts as if the labels of the records were drawn by chance."""
    return functools.partial(_predictions, np.random.default_rng(seed).random(3))


def _predictions(weights, x):
    logits = np.random.default_rng(0).normal(size=(len(x), 3)) * weights
    return np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)


def _save_predictions(path):
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(3), 600)
    members = np.arange(600) % 2 == 0
    np.savez(path, probabilities=probabilities, labels=rng.integers(0, 3, 600), members=members)


def file_for(command, folder):
    """Makes the ledgers that a command reads; returns the head of the last one."""
    head = None
    sampling = PoissonSampling(256 / 1797, 1797)
    step = SampledEvent(sampling, GaussianSumEvent(1.0, 2.0), NeighboringRelation.ZERO_OUT)
    for name in ("a.ledger", "b.ledger", "first.ledger", "run.ledger"):
        if name in command and not (folder / name).exists():
            with PrivacyLedger.open(folder / name, create=True, lease=1) as ledger:
                ledger.append(step, 2_000 if "--steps" in command else 104)
                head = ledger.head
    if "predictions.npz" in command:
        _save_predictions(folder / "predictions.npz")
    if "patients.ledger" in command:
        (folder / "secret.key").write_bytes(bytes(32))
        arguments = {"create": True, "dataset_id": "patients-2026", "key": bytes(32)}
        with PrivacyLedger.open(folder / "patients.ledger", lease=1, **arguments) as ledger:
            for count in [64] * 210 + [128]:
                ledger.append(step, count)
    return head
