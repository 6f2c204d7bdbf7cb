"""One folder per paper, with figures, tables and kinds of runs, which are registered in the same way as plug-ins.

``config/plugins.py:load_papers`` finds these folders. No other module imports these folders, so you can delete any
folder.
"""
