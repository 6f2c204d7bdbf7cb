"""Every statistical procedure of reports and bundles, each in one place and with its source.

- ``intervals``: Student's t over seeds, Wilson's for a share, the shifted percentile bootstrap; clipping of shares;
  test items drawn with replacement, the same draws for all runs.
  Rank correlation of two lists, slopes on logarithmic axes.
- ``effects``: an effect over seeds and test items: its interval, p-value and power. The rate of false verdicts: Holm's
  correction, alpha spending, number of further seeds.
"""
