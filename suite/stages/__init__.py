"""The stages of a study, one module each; ``suite.runner`` takes them in order.

In flow the study's materials and what the store already holds; out flow finished MLflow runs.
A stage does only what is missing, and goes on where an earlier process was cut off.
"""
