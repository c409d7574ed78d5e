"""Steps in PyTorch: ordinary, and by Opacus with hooks, expanded weights or ghost clipping.

On a GPU where there is one.
"""

import warnings

import inputs
import opacus
import torch
from opacus import layers as dp_layers
from torch import nn

LEARNING_RATE = 0.1
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
MODES = {"opacus": "hooks", "opacus_ew": "ew", "opacus_ghost": "ghost"}


class PositionTable(nn.Module):
    """Adds a learned vector for each position."""

    def __init__(self, length, width):
        super().__init__()
        self.table = nn.Parameter(0.05 * torch.randn(length, width))

    def forward(self, x):
        return x + self.table


@opacus.grad_sample.register_grad_sampler(PositionTable)
def position_table_gradients(layer, activations, backprops):
    return {layer.table: backprops}


@opacus.grad_sample.register_norm_sampler(PositionTable)
def position_table_norms(layer, activations, backprops):
    return {layer.table: backprops.flatten(1).norm(2, dim=-1)}


class Mean(nn.Module):
    """Mean over axes."""

    def __init__(self, *axes):
        super().__init__()
        self.axes = axes

    def forward(self, x):
        return x.mean(self.axes)


class Residual(nn.Module):
    """relu(body(x) + shortcut(x)) of the ResNet."""

    def __init__(self, body, shortcut):
        super().__init__()
        self.body, self.shortcut = body, shortcut

    def forward(self, x):
        return nn.functional.relu(self.body(x) + self.shortcut(x))


class Block(nn.Module):
    """Pre-LayerNorm transformer block; `attention` is PyTorch's class or Opacus' copy of it."""

    def __init__(self, attention):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(128), nn.LayerNorm(128)
        self.attention = attention(128, 4, batch_first=True)
        self.mlp = nn.Sequential(nn.Linear(128, 512), nn.GELU(), nn.Linear(512, 128))

    def forward(self, x):
        y = self.norm1(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        return x + self.mlp(self.norm2(x))


class LastOutput(nn.Module):
    """Output of a recurrent layer at the last position."""

    def __init__(self, recurrent):
        super().__init__()
        self.recurrent = recurrent

    def forward(self, x):
        return self.recurrent(x)[0][:, -1]


def mlp(private, width):
    return nn.Sequential(
        *[nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()],
        nn.Linear(width, 10),
    )


def cnn(private):
    return nn.Sequential(
        *[nn.Conv2d(1, 16, 8, stride=2, padding=3), nn.ReLU(), nn.MaxPool2d(2, 1)],
        *[nn.Conv2d(16, 32, 4, stride=2), nn.ReLU(), nn.MaxPool2d(2, 1)],
        *[nn.Flatten(), nn.Linear(512, 32), nn.ReLU(), nn.Linear(32, 10)],
    )


def resnet(private):
    def convolve(inputs, outputs, size, stride):
        # Where the stride is 2, TensorFlow's "same" puts the padding of 1 on one side only.
        convolution = nn.Conv2d(inputs, outputs, size, stride, size // 2, bias=False)
        return [convolution, nn.GroupNorm(8, outputs)]

    stack, before = [*convolve(3, 32, 3, 1), nn.ReLU()], 32
    for channels in (32, 64, 128):
        body = [*convolve(before, channels, 3, 2), nn.ReLU(), *convolve(channels, channels, 3, 1)]
        shortcut = convolve(before, channels, 1, 2)
        stack.append(Residual(nn.Sequential(*body), nn.Sequential(*shortcut)))
        before = channels
    return nn.Sequential(*stack, Mean(2, 3), nn.Linear(128, 10))


def transformer(private, length, vocabulary):
    attention = dp_layers.DPMultiheadAttention if private else nn.MultiheadAttention
    return nn.Sequential(
        nn.Embedding(vocabulary, 128),
        PositionTable(length, 128),
        *[Block(attention), Block(attention), Mean(1), nn.Linear(128, 2)],
    )


def lstm(private, length, vocabulary):
    recurrent = (dp_layers.DPLSTM if private else nn.LSTM)(64, 64, batch_first=True)
    return nn.Sequential(nn.Embedding(vocabulary, 64), LastOutput(recurrent), nn.Linear(64, 2))


def embedding(private, length, vocabulary):
    # Gradients of the table are sparse in Keras too; Opacus takes dense ones only.
    table = nn.Embedding(vocabulary, 64, sparse=not private)
    return nn.Sequential(table, Mean(1), nn.Linear(64, 2))


MODELS = {
    "mlp": mlp,
    "cnn": cnn,
    "resnet": resnet,
    "transformer": transformer,
    "lstm": lstm,
    "embedding": embedding,
}


def set_threads(threads: int) -> None:
    torch.set_num_threads(threads)
    torch.set_num_interop_threads(threads)


def make_step(variant: str, options: dict):
    """Returns (function that trains one step and waits for it, facts about it)."""
    warnings.simplefilter("ignore")
    workload = options["workload"]
    size = inputs.sizes(workload, **options["size"])
    x, y = (torch.from_numpy(part).to(DEVICE) for part in inputs.batch(workload, size))
    y = y.long()
    if x.ndim == 4:
        x = x.permute(0, 3, 1, 2).contiguous()
    arguments = {k: v for k, v in size.items() if k != "batch_size"}
    model = MODELS[workload](variant != "torch", **arguments).to(DEVICE).train()
    parameters = sum(p.numel() for p in model.parameters())
    version = f"torch {torch.__version__}"
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    criterion = nn.CrossEntropyLoss()
    if variant != "torch":
        version = f"opacus {opacus.__version__}, {version}"
        # A loader of one batch, from which the engine takes the expected size.
        loader = torch.utils.data.DataLoader(
            torch.utils.data.TensorDataset(x, y), batch_size=size["batch_size"]
        )
        made = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            criterion=criterion,
            data_loader=loader,
            noise_multiplier=1.0,
            max_grad_norm=1.0,
            poisson_sampling=False,
            grad_sample_mode=MODES[variant],
        )
        model, optimizer = made[:2]
        criterion = made[2] if variant == "opacus_ghost" else criterion

    def step():
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step, {"parameters": parameters, "version": version}
