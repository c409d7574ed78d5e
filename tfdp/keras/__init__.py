"""Private training of Keras 3 models on the TensorFlow backend."""

from tfdp.keras.callbacks import EpsilonLogger as EpsilonLogger
from tfdp.keras.callbacks import PrivacyBudget as PrivacyBudget
from tfdp.keras.carrying import declare_weights as declare_weights
from tfdp.keras.constructors import DPKerasAdagradOptimizer as DPKerasAdagradOptimizer
from tfdp.keras.constructors import DPKerasAdamOptimizer as DPKerasAdamOptimizer
from tfdp.keras.constructors import DPKerasSGDOptimizer as DPKerasSGDOptimizer
from tfdp.keras.errors import LedgerMismatchError as LedgerMismatchError
from tfdp.keras.errors import NotPrivateError as NotPrivateError
from tfdp.keras.errors import PrivacyBudgetExceededError as PrivacyBudgetExceededError
from tfdp.keras.models import DPModel as DPModel
from tfdp.keras.models import DPSequential as DPSequential
from tfdp.keras.models import make_private as make_private
from tfdp.keras.normalization import convert_norm as convert_norm
from tfdp.keras.optimizer import DPOptimizer as DPOptimizer
from tfdp.keras.public_clips import clips_from_public_data as clips_from_public_data
