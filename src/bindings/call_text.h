/* SPDX-License-Identifier: Apache-2.0 */
/* The text of a call, taken apart: see calls.h. */
#ifndef EJKI_BINDINGS_CALL_TEXT_H
#define EJKI_BINDINGS_CALL_TEXT_H

#include "bindings/calls.h"

/* A tensor's name, in the text. */
typedef struct ejki_call_name {
    const char *text;
    int length;
    bool mapped;
} ejki_call_name;

typedef struct ejki_call_text {
    char operation[64];
    int32_t operands, results; /* how many of each */
    ejki_call_name names[EJKI_CALL_TENSORS];
    int64_t elements;
    const char *arguments; /* JSON */
} ejki_call_text;

/* Takes `text` apart, which ends with a zero and has to stay. Status: MALFORMED. */
ejk_status ejki_read_call_text(const char *text, size_t length, ejki_call_text *out);

#endif
