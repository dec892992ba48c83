# SPDX-License-Identifier: Apache-2.0
"""The old place of machine(); it lives in rooflm.device.machine."""

from rooflm.device.machine import machine

__all__ = ["machine"]
