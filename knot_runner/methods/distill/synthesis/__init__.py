"""Data-free distillation: images made from a trained teacher, for a student that sees no real one."""
