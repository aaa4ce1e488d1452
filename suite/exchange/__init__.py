"""Studies out of one home or server and into another, as a folder of parquet and JSON.

In flow what the reader and the artifacts of a store hold, or a folder from elsewhere, which
is checked whole before anything is written; out flow such a folder, or new runs of a study.
"""
