"""One rule for every kind of layer that the book-keeping engine knows."""

from tfdp.gradients.rules import (
    attention as attention,
)
from tfdp.gradients.rules import (
    convolution as convolution,
)
from tfdp.gradients.rules import (
    dense as dense,
)
from tfdp.gradients.rules import (
    depthwise as depthwise,
)
from tfdp.gradients.rules import (
    einsum_dense as einsum_dense,
)
from tfdp.gradients.rules import (
    embedding as embedding,
)
from tfdp.gradients.rules import (
    images as images,
)
from tfdp.gradients.rules import (
    normalization as normalization,
)
from tfdp.gradients.rules import (
    prelu as prelu,
)
from tfdp.gradients.rules import (
    preprocessing as preprocessing,
)
from tfdp.gradients.rules import (
    recurrent as recurrent,
)
from tfdp.gradients.rules import (
    spectrogram as spectrogram,
)
from tfdp.gradients.rules import (
    time_distributed as time_distributed,
)
from tfdp.gradients.rules import (
    weightless as weightless,
)
