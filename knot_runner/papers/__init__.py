"""A folder for each paper, with its figures, tables and kinds of run, which use the same tables as plug-ins.

``config/plugins.py:load_papers`` finds these folders. Nothing else imports them, so that one can be deleted.
"""
