"""Statistical procedures of all reports, with their sources.

- ``intervals``: Student's t interval over seeds, and bootstrap resamples of the test examples.
- ``effects``: the interval, p-value and power of an effect over seeds and test examples. Holm's correction and alpha
  spending control the rate of false verdicts.
"""
