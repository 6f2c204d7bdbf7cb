"""A folder for each paper: its own figures, tables and kinds of run, which use the tables that plug-ins use.

``config/plugins.py:load_papers`` finds these folders. Nothing else imports them, so that one can be deleted.
"""
