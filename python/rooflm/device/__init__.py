# SPDX-License-Identifier: Apache-2.0
"""What the machine is and does: memory, latency, peaks, sensors, counters."""
