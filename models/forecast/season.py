"""Is there a season in a series, how long is it, and what happened at this place of it before?"""

import numpy as np

from headrace.models.forecast.pack import Floats

SHORTEST = 6  # windows; a shorter rhythm is followed by the last few values
CLEAR = 0.3  # autocorrelation that a season must have, besides 2/√n
KEEP = 0.9  # of the best autocorrelation is enough for a shorter season, or for the one known already
CYCLES = 7  # seasons back that are looked at


def find_period(values: Floats, known: int = 0) -> int:
    """The season's length in windows; 0 where none is clear. Needs two of them.

    The first clear peak of the autocorrelation, after it has once been negative, of the values without their straight
    line and with outliers clipped at 3 standard deviations. `known` stays where it is nearly as good as the best.
    """
    n = len(values)
    if n < 2 * SHORTEST:
        return 0
    time = np.arange(n) - (n - 1) / 2
    centred = values - values.mean()
    rest = centred - time * (time @ centred) / (time @ time)
    deviation = float(rest.std())
    if deviation <= 1e-9 * float(np.abs(values).max()):
        return 0
    rest = np.clip(rest / deviation, -3, 3)
    correlation = _autocorrelation(rest - rest.mean())
    negative = np.flatnonzero(correlation < 0)
    if not len(negative):
        return 0
    lags = np.arange(max(SHORTEST, int(negative[0])), len(correlation) - 1)
    peaks = lags[(correlation[lags] >= correlation[lags - 1]) & (correlation[lags] >= correlation[lags + 1])]
    best = float(correlation[peaks].max()) if len(peaks) else 0.0
    if best < max(CLEAR, 2 / np.sqrt(n)):
        return 0
    if 0 < known < len(correlation) and correlation[known] >= KEEP * best:
        return known
    return _sharpened(int(peaks[correlation[peaks] >= KEEP * best][0]), correlation)


def _autocorrelation(rest: Floats) -> Floats:
    """At lags 0..n/2, each as if the series were as long as at lag 0."""
    n = len(rest)
    spectrum = np.fft.rfft(rest, 2 * n)
    products: Floats = np.fft.irfft(np.abs(spectrum) ** 2)[: n // 2 + 1]
    result: Floats = products / products[0] * n / (n - np.arange(len(products)))
    return result


def _sharpened(lag: int, correlation: Floats) -> int:
    """The highest place within 5 % of a peak: noise makes several small peaks of one."""
    reach = max(1, lag // 20)
    low, high = max(SHORTEST, lag - reach), min(len(correlation), lag + reach + 1)
    return low + int(np.argmax(correlation[low:high]))


def seasonal_change(values: Floats, period: int, steps: int) -> float:
    """How much the series changed over `steps` windows at the same place of earlier seasons; 0 where there is none.

    The median over the last seasons and a few windows around the place. `values` oldest first; the place is the end.
    """
    n, band = len(values), max(1, period // 28)
    changes = []
    first = -(-steps // period)  # the last season whose change is over
    for cycle in range(first, first + CYCLES):
        end = n - 1 + steps - cycle * period  # where the same change ended then
        low, high = end - band, min(n - 1, end + band)
        if low - steps < 0:
            break
        changes.append(values[low : high + 1] - values[low - steps : high + 1 - steps])
    return float(np.median(np.concatenate(changes))) if changes else 0.0
