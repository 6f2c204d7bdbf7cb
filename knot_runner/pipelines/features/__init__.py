"""What stands for an example where no model is trained: pixels, codes, words, an encoder's [CLS].

Open ``encoding.py`` first: examples as they are read, and which rows are whose.
"""
