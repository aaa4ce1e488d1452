"""What is wrong with a home, in words, and what can be mended without a person.

In flow a home as it lies on disk and its tracking store; out flow findings, block by block.
Nothing is written, not even a lock file, unless a person asks for mending.
"""
