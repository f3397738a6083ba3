"""The planner of NVIDIA Dynamo 1.4.2, decision for decision: what a deployment that runs it would be told.

Written from a description of its behaviour and checked against recorded answers of it (docs/reference-differences.md).
It runs beside Headrace's own planning as a shadow (`shadow_reference`), so that an operator can compare before
switching. Its mistakes are kept: do not plan with it.
"""
