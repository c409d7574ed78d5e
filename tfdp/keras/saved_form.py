"""The form in which private models are saved: a plain one, whose ledger is found again.

A file names the class of its model twice: by the name under which it is registered, if it is, and
by module and class. Keras looks for the first, and then for the second. So a file can name Keras'
own class, which everybody has, and a loader that only a process with tfdp has.
"""

from typing import Any

import keras

from tfdp.gradients.keras_internals import FUNCTIONAL
from tfdp.keras.weights_file import ATTRIBUTE, LedgerOfPlainModel


class _Found:
    """Mixin of a plain class of Keras, which is only saved; what is loaded is the plain class."""

    _plain: type[keras.Model]

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> keras.Model:
        model = cls._plain.from_config(config, custom_objects=custom_objects)
        # Keras loads the state of this attribute after that of the layers.
        setattr(model, ATTRIBUTE, LedgerOfPlainModel(model))
        return model


class _Sequential(_Found, keras.Sequential):
    _plain = keras.Sequential


class _Functional(_Found, FUNCTIONAL):  # type: ignore[valid-type,misc]
    _plain = FUNCTIONAL


for _class in (_Sequential, _Functional):
    _class.__module__ = _class._plain.__module__
    _class.__name__ = _class.__qualname__ = _class._plain.__name__
    keras.saving.register_keras_serializable("tfdp", f"Plain{_class.__name__}")(_class)


def with_ledger_found(plain: keras.Model) -> keras.Model:
    """Returns a model of the same layers and weights to be saved in the place of a plain one.

    Guarantees:
        The file loads as the plain class, with Keras alone. A process that has imported tfdp finds
        what was paid for the weights with them, and refuses a file that does not say it.

    Args:
        plain: Any model. One whose class is neither `keras.Sequential` nor that of
            `keras.Model(inputs, outputs)` is returned as it is: its class says how it is loaded.
    """
    if type(plain) is keras.Sequential:
        return _Sequential(sequential_layers(plain), name=plain.name)
    if type(plain) is FUNCTIONAL:
        return _Functional(plain.input, plain.output, name=plain.name)
    return plain


def sequential_layers(model: keras.Sequential) -> list[Any]:
    """Returns the layers, preceded by the Input where the model has one."""
    if not model.built or not model.inputs:
        return list(model.layers)
    tensor = model.inputs[0]
    return [keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype), *model.layers]
