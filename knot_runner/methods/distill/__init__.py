"""Knowledge distillation by a product of tables: loss terms, schedules, teachers (Hinton 2015 and its families)."""

# each fills its rows of term.TERMS
from knot_runner.methods.distill import attention, contrastive, hints, relation, response
