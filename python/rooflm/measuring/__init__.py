# SPDX-License-Identifier: Apache-2.0
"""Speed of models: the grid of runs, its records, the ceilings beside them, and what tells two results apart."""
