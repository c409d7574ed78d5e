"""How TensorFlow goes through the data sets that samples come from."""

import tensorflow as tf


def untuned(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the data set, through which TensorFlow goes without tuning it.

    In a pipeline of samples there is nothing to tune, but a thread would look at it from time to
    time, at last once a minute. An iterator is not gone before that thread is, and whoever lets go
    of it waits. The thread is woken, but before it can see why, and so often sleeps on: then `fit`
    would end up to a minute late.
    """
    options = tf.data.Options()
    options.autotune.enabled = False
    return dataset.with_options(options)
