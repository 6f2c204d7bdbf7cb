"""Knowledge distillation by a product of tables: loss terms, schedules, teachers (Hinton 2015 and its families)."""
