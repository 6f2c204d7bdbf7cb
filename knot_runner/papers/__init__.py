"""Extensions for papers, one folder per paper. A folder registers figures, tables and kinds of runs, as a plug-in does.

No other module imports these folders, so any folder can be deleted.
"""
