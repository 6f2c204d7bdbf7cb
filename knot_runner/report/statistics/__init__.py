"""Every statistical procedure of reports and bundles, each in one place and with its source.

- ``intervals``: Student's t over seeds, Wilson's of a share, the shifted percentile bootstrap; where a share is cut.
- ``resampling``: test items drawn with replacement, the same draws for all runs.
- ``effects``: an effect over seeds and test items: its interval, p-value and power.
- ``error_control``: how often verdicts may be false: Holm's correction, alpha spending, how many more seeds.
- ``association``: rank correlation of two lists, slopes on logarithmic axes.
"""
