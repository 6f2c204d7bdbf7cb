"""Data-free distillation: the student trains on images synthesized from a trained teacher, and on no real ones."""
