"""Seconds of rounds of tfdp's simulation, as JSON."""

import json
import sys
import time

import federated_task as task
import keras

import tfdp


def main(rounds: int) -> None:
    """Runs rounds; the first one, which traces, is reported apart."""
    x, y = task.data()
    model = tfdp.keras.make_private(task.keras_model())
    query = tfdp.GaussianAverageQuery(
        task.CLIP, noise_multiplier=task.NOISE_MULTIPLIER, denominator=task.COHORT
    )
    optimizer = tfdp.keras.DPOptimizer(keras.optimizers.SGD(1.0), query, privacy_unit="user")
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    server = tfdp.federated.Server(model, range(task.CLIENTS), cohort_size=task.COHORT)
    sgd = tfdp.federated.LocalSGD(task.EPOCHS, task.BATCH, task.LEARNING_RATE)
    data = {name: (x[name], y[name]) for name in range(task.CLIENTS)}
    simulation = tfdp.federated.Simulation(server, data, sgd)
    times = [time.perf_counter()]
    for current in server.rounds(rounds):
        simulation(current)
        times.append(time.perf_counter())
    seconds = [b - a for a, b in zip(times, times[1:], strict=False)]
    version = f"tfdp {tfdp.__version__}"
    print(json.dumps({"version": version, "first": seconds[0], "rounds": seconds[1:]}))


if __name__ == "__main__":
    main(int(sys.argv[1]))
