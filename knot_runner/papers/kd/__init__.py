"""Comparison of knowledge distillation with RepDistiller (Tian et al. 2020). The methods are part of the core."""
