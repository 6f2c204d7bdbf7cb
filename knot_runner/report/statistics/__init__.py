"""Every statistical procedure of reports, each in one place and with its source.

- ``intervals``: Student's t interval over seeds, and the shifted percentile bootstrap.
  Also clipped shares, and test items drawn with replacement, with the same draws for all runs.
- ``effects``: an effect over seeds and test items, with its interval, p-value and power. Control of false verdicts:
  Holm's correction, alpha spending, and the number of further seeds.
"""
