# SPDX-License-Identifier: Apache-2.0
"""From numbers to advice: doctor, tuning, sweeps, health and soak."""
