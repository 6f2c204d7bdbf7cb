"""All statistical procedures of reports, with their sources.

- ``intervals``: Student's t interval over seeds, intervals clipped to the range of a share, and the bootstrap's draws
  of test items with replacement, which are the same for all runs.
- ``effects``: the interval, p-value and power of an effect over seeds and test items; the control of false verdicts by
  Holm's correction and alpha spending; and the number of further seeds that a verdict needs.
"""
