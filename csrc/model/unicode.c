// SPDX-License-Identifier: Apache-2.0
// UTF-8 by the table of well-formed sequences in the Unicode standard: no overlong forms, no surrogates.
#include "model/unicode.h"

size_t rl_utf8_read(const uint8_t *p, const uint8_t *end, uint32_t *cp) {
    uint32_t b = *p;
    size_t left = (size_t)(end - p);
    *cp = 0xFFFD;
    if (b < 0x80) {
        *cp = b;
        return 1;
    }
    if (b < 0xC2 || b > 0xF4 || left < 2) return 1;
    uint32_t c1 = p[1];
    if (b < 0xE0) {
        if ((c1 & 0xC0) != 0x80) return 1;
        *cp = (b & 0x1F) << 6 | (c1 & 0x3F);
        return 2;
    }
    // The second byte is what rules out overlong forms, surrogates and values above U+10FFFF.
    uint32_t lo = b == 0xE0 ? 0xA0 : b == 0xF0 ? 0x90 : 0x80, hi = b == 0xED ? 0x9F : b == 0xF4 ? 0x8F : 0xBF;
    if (c1 < lo || c1 > hi || left < 3 || (p[2] & 0xC0) != 0x80) return 1;
    if (b < 0xF0) {
        *cp = (b & 0x0F) << 12 | (c1 & 0x3F) << 6 | (p[2] & 0x3Fu);
        return 3;
    }
    if (left < 4 || (p[3] & 0xC0) != 0x80) return 1;
    *cp = (b & 0x07) << 18 | (c1 & 0x3F) << 12 | (p[2] & 0x3Fu) << 6 | (p[3] & 0x3Fu);
    return 4;
}
