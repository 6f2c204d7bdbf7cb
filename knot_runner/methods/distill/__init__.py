"""Knowledge distillation, composed from tables of loss terms, schedules and teachers."""

# each module adds its entries to term.TERMS
from knot_runner.methods.distill import attention, contrastive, hints, relation, response
