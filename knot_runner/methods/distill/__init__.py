"""Knowledge distillation, composed from tables of loss terms, schedules and teachers."""

# each fills its rows of term.TERMS
from knot_runner.methods.distill import attention, contrastive, hints, relation, response
