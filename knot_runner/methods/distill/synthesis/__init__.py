"""Data-free distillation: the student trains only on images that are synthesized from a trained teacher."""
