"""The scattering transform of images, in TensorFlow: wavelets, modulus, average.

    S_0 = x * phi,   S_1 = |x * psi_a| * phi,   S_2 = ||x * psi_a| * psi_b| * phi

for wavelets a, and b of a larger scale than a's, with every 2^J-th row and column kept. Nothing of
it is learned, so it costs no privacy: it is a public function of one image.

Filters, scales and padding are those of Kymatio (Andreux et al. 2020, arXiv:1812.11214); the
transform is Bruna and Mallat's (2013, arXiv:1203.1513).
"""

import functools
import math

import numpy as np
import tensorflow as tf


def gabor(side: int, sigma: float, angle: float, frequency: float, slant: float) -> np.ndarray:
    """Returns a complex [side, side] wave under a Gaussian of sum one, on a torus.

    Args:
        side: Rows and columns.
        sigma: Standard deviation of the Gaussian across the waves, in pixels.
        angle: In which the wave runs.
        frequency: Radians in a pixel.
        slant: The Gaussian is sigma / slant wide along the crests.
    """
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shape = turn @ np.diag([1, slant**2]) @ turn.T / (2 * sigma**2)
    result = np.zeros((side, side), complex)
    for shift in np.ndindex(5, 5):  # The Gaussian wraps around, twice on each side.
        at = np.mgrid[:side, :side] + side * (np.array(shift) - 2).reshape(2, 1, 1)
        bell = np.einsum("ihw,ij,jhw->hw", at, shape, at)
        wave = frequency * (at[0] * np.cos(angle) + at[1] * np.sin(angle))
        result += np.exp(1j * wave - bell)
    return result * slant / (2 * math.pi * sigma**2)


def morlet(side: int, scale: int, angle: float, slant: float) -> np.ndarray:
    """Returns the wavelet of a scale and an angle: a wave under a Gaussian, of sum zero."""
    sigma = 0.8 * 2**scale
    wave = gabor(side, sigma, angle, 0.75 * math.pi / 2**scale, slant)
    bell = gabor(side, sigma, angle, 0.0, slant)
    return wave - bell * wave.sum() / bell.sum()


class Scattering:
    """The scattering transform, to second order, of square images.

    Args:
        side: Rows and columns of an image; a multiple of 2^scales.
        scales: J; what is kept is smoothed over about 2^J pixels.
        angles: L, of every scale.

    Raises:
        ValueError: the side is no multiple of 2^scales.

    Example:
        >>> Scattering(28)(np.zeros((2, 28, 28), "float32")).shape
        TensorShape([2, 7, 7, 81])
    """

    def __init__(self, side: int, scales: int = 2, angles: int = 8):
        step = 2**scales
        if side % step:
            raise ValueError(f"side must be a multiple of {step}. Received: side={side}.")
        self.side, self.scales, self.angles = side, scales, angles
        # Two standard deviations of the average, mirrored on each side.
        self.padding = step
        padded = side + 2 * self.padding
        angle = [(angles // 2 - 1 - i) * math.pi / angles for i in range(angles)]
        # k(-t) = conj(k(t)) for every wavelet k, and so its spectrum is real.
        self.spectra = [
            tf.constant(
                [np.fft.fft2(morlet(padded, scale, a, 4.0 / angles)).real for a in angle],
                tf.complex64,
            )
            for scale in range(scales)
        ]
        # The average is a Gaussian on rows, and one on columns: [kept, pixels] at each resolution.
        bell = gabor(padded, 0.8 * 2 ** (scales - 1), 0.0, 0.0, 1.0).real[0]
        bell /= math.sqrt(bell[0])
        kept = self.padding + step * np.arange(side // step)
        self.averages = [
            tf.constant(2**now * bell[kept[:, None] - np.arange(0, padded, 2**now)], tf.float32)
            for now in range(scales)
        ]

    @property
    def channels(self) -> int:
        """1 + J L + L^2 J (J - 1) / 2."""
        first = self.scales * self.angles
        return 1 + first + self.angles**2 * self.scales * (self.scales - 1) // 2

    @functools.partial(tf.function, reduce_retracing=True)
    def __call__(self, images: tf.Tensor) -> tf.Tensor:
        """Returns [n, side / 2^J, side / 2^J, channels] for images [n, side, side], float32.

        Channels: the average, then wavelets by scale and angle, then pairs by both wavelets.
        """
        images = tf.cast(images, tf.float32)
        images = tf.ensure_shape(images, (None, self.side, self.side))
        border = [self.padding, self.padding]
        images = tf.pad(images, [[0, 0], border, border], "REFLECT")
        spectrum = tf.signal.fft2d(tf.cast(images, tf.complex64))
        found = [self._average(images[:, None], 0)]
        pairs = []
        for first in range(self.scales):
            waves = self._modulus(spectrum[:, None], 0, first)
            found.append(self._average(waves, first))
            spectra = tf.signal.fft2d(tf.cast(waves, tf.complex64))
            for second in range(first + 1, self.scales):
                of_pairs = self._modulus(spectra[:, :, None], first, second)
                averages = self._average(of_pairs, second)
                pairs.append(tf.reshape(averages, (-1, self.angles**2, *averages.shape[-2:])))
        return tf.transpose(tf.concat(found + pairs, 1), (0, 2, 3, 1))

    def _modulus(self, spectrum: tf.Tensor, now: int, scale: int) -> tf.Tensor:
        """Returns every 2^scale-th pixel of |x * psi|, of the spectrum of every 2^now-th of x."""
        # A filter's taps lie 2^now apart, and each stands for as many.
        filters = 4**now * _fold(self.spectra[scale], now)
        return tf.abs(tf.signal.ifft2d(_fold(spectrum * filters, scale - now)))

    def _average(self, pixels: tf.Tensor, now: int) -> tf.Tensor:
        """Returns the smoothed pixels that are kept, of every 2^now-th."""
        kernel = self.averages[now]
        return tf.einsum("rh,...hw,sw->...rs", kernel, pixels, kernel)


def _fold(spectrum: tf.Tensor, halvings: int) -> tf.Tensor:
    """Returns the spectrum of every 2^halvings-th pixel: frequencies that become one, averaged."""
    factor = 2**halvings
    if factor == 1:
        return spectrum
    rows, columns = spectrum.shape[-2] // factor, spectrum.shape[-1] // factor
    parts = tf.concat([tf.shape(spectrum)[:-2], [factor, rows, factor, columns]], 0)
    folded = tf.reduce_mean(tf.reshape(spectrum, parts), axis=[-4, -2])
    return tf.ensure_shape(folded, (*spectrum.shape[:-2], rows, columns))
