"""One folder per paper, with its figures, tables and kinds of runs, registered in the same tables as plug-ins.

``config/plugins.py:load_papers`` finds these folders. Nothing else imports them, so you can delete any of them.
"""
