/* SPDX-License-Identifier: Apache-2.0 */
/* The characters of labels. */
#ifndef EJKI_OPS_IDENTITY_LABEL_H
#define EJKI_OPS_IDENTITY_LABEL_H

#include <stdbool.h>
#include <stddef.h>

/* Digits of a key. */
enum { EJKI_KEY_DIGITS = 16 };

static inline bool ejki_is_letter_or_digit(unsigned char c) {
    unsigned char small = c | 0x20;
    return (c >= '0' && c <= '9') || (small >= 'a' && small <= 'z');
}

static inline bool ejki_is_version_char(unsigned char c) {
    return ejki_is_letter_or_digit(c) || c == '_' || c == '.' || c == '-';
}

static inline bool ejki_is_op_char(unsigned char c) {
    return ejki_is_version_char(c) || c == '@';
}

/* True if a key stands at `text`, of which `length` bytes may be read. */
static inline bool ejki_is_key(const char *text, size_t length) {
    if (length < EJKI_KEY_DIGITS) return false;
    for (int i = 0; i < EJKI_KEY_DIGITS; i++)
        if (!((text[i] >= '0' && text[i] <= '9') || (text[i] >= 'a' && text[i] <= 'f')))
            return false;
    return true;
}

#endif
