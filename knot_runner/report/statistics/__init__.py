"""All statistical procedures of reports, with their sources.

- ``intervals``: Student's t interval over seeds, and the shifted percentile bootstrap.
  Also intervals clipped to the range of a share, and test items drawn with replacement (the same draws for all runs).
- ``effects``: an effect over seeds and test items, with its interval, p-value and power. Control of false verdicts:
  Holm's correction and alpha spending. Number of further seeds needed for a verdict.
"""
