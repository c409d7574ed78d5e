"""A participant against the steps of figure 2; crashes and bad messages."""

import numpy as np
import pytest

from tfdp.federated.selective import (
    BadMessageError,
    LargestValues,
    ParameterServer,
    Participant,
    SparseVector,
)
from tfdp.federated.selective.sparse import encode


def toward(goal, rate=0.5):
    """An epoch that goes half of the way to a goal."""
    return lambda w: w + np.float32(rate) * (np.array(goal, np.float32) - w)


def test_a_turn_is_download_train_and_upload():
    server = ParameterServer(np.zeros(4, np.float32))
    participant = Participant(toward([4, -8, 1, 0]), LargestValues(0.5, 3.0), theta_d=0.25)
    participant.turn(server)
    # Changes are 2, -4, 0.5, 0: two of them are shared, within 3; its own are what training made.
    assert server.parameters.tolist() == [2, -3, 0, 0]
    assert participant.parameters.tolist() == [2, -4, 0.5, 0]
    # It now takes the one parameter that was updated most, the first of two, and keeps the others.
    server.upload(encode(SparseVector(4, np.array([0]), np.array([10.0], np.float32))))
    participant.turn(server)
    assert participant.parameters.tolist() == [8, -6, 0.75, 0]
    # Changes are -4, -2, 0.25, 0.
    assert server.parameters.tolist() == [9, -5, 0, 0]


def test_a_participant_that_crashed_downloads_everything():
    server = ParameterServer(np.zeros(2, np.float32))
    participant = Participant(toward([1, 1]), LargestValues(0.0, 1.0), theta_d=0.0)
    participant.turn(server)
    assert participant.parameters.tolist() == [0.5, 0.5]
    participant.download(server)
    assert participant.parameters.tolist() == [0.5, 0.5]
    participant.crash()
    participant.download(server)
    assert participant.parameters.tolist() == [0, 0]


def test_training_that_diverges_shares_nothing_of_it_and_goes_on():
    server = ParameterServer(np.ones(3, np.float32))
    epochs = iter([[np.nan, 2.0, np.inf], [5.0, 5.0, 5.0]])
    participant = Participant(lambda w: np.array(next(epochs)), LargestValues(1.0, 10.0), 0.0)
    participant.turn(server)
    assert participant.parameters.tolist() == [1, 2, 1] and server.parameters.tolist() == [1, 2, 1]
    participant.turn(server)
    assert participant.parameters.tolist() == [5, 5, 5]


def test_training_gets_a_copy():
    def train(w):
        w += 1
        return w

    server = ParameterServer(np.zeros(2, np.float32))
    Participant(train, LargestValues(1.0, 10.0)).turn(server)
    assert server.parameters.tolist() == [1, 1]


class _BadServer:
    def __init__(self, text):
        self.text = text

    def download(self, theta_d):
        return self.text


@pytest.mark.parametrize(
    "text",
    [
        b"",
        encode(SparseVector(3, np.array([0]), np.ones(1, np.float32))),
        encode(SparseVector(2, np.arange(2), np.array([1, np.nan], np.float32))),
    ],
)
def test_bad_downloads_are_refused(text):
    with pytest.raises(BadMessageError):
        Participant(toward([1, 1]), LargestValues(1.0, 1.0)).download(_BadServer(text))


def test_refuses_to_train_without_parameters_or_to_change_their_number():
    participant = Participant(lambda w: w[:1], LargestValues(1.0, 1.0))
    with pytest.raises(ValueError, match="download"):
        participant.epoch()
    participant.download(ParameterServer(np.zeros(2, np.float32)))
    with pytest.raises(ValueError, match="as many parameters"):
        participant.epoch()


def test_refuses_to_share_what_is_no_sparse_vector():
    server = ParameterServer(np.zeros(2, np.float32))
    participant = Participant(toward([1, 1]), lambda changes: changes)
    with pytest.raises(TypeError, match="select must return a .*SparseVector.* Received: ndarray."):
        participant.turn(server)
    assert server.version == 0
