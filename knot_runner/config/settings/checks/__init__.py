"""Whether groups of a composed config fit together: models, personal methods, distillation, a student's images.

Open ``fit.py`` first: task, method, model, training and partition.
"""
