"""Knowledge distillation beside RepDistiller (Tian et al. 2020). The methods themselves are of the core."""
