"""Every statistical procedure of reports and bundles, each in one place and with its source.

- ``intervals``: Student's t over seeds, Wilson's for a share, the shifted percentile bootstrap; clipping of shares;
  test items drawn with replacement, the same draws for all runs.
- ``effects``: an effect over seeds and test items: its interval, p-value and power.
- ``error_control``: the rate of false verdicts: Holm's correction, alpha spending, number of further seeds.
- ``association``: rank correlation of two lists, slopes on logarithmic axes.
"""
