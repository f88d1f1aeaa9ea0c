/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lengths as units say them:
 *
 *     sum    = term { ( "+" | "-" ) term }
 *     term   = factor { ( "*" | "/" ) factor }
 *     factor = number | symbol | symbol "#" | "(" sum ")" | "ceil(" sum ")" | "floor(" sum ")"
 *
 * "/" is exact, and so is all arithmetic: what overflows, divides by zero, is below zero or no whole number
 * in the end has no length. A symbol that is not bound may be solved for where the whole is linear in it.
 */
#ifndef EJKI_RECORD_EXPRESSION_H
#define EJKI_RECORD_EXPRESSION_H

#include "base/base.h"

#include <ejkernel/record.h>

/* Text in a unit, not ended by a zero. */
typedef struct ejki_length {
    const char *text;
    int32_t size;
    int32_t member; /* of a list: what "#" behind a symbol stands for */
} ejki_length;

typedef enum ejki_length_state {
    EJKI_LENGTH_KNOWN,  /* `value` */
    EJKI_LENGTH_LINEAR, /* it is (add + factor * symbol) / divisor */
    EJKI_LENGTH_OPEN,   /* it needs `symbol`, and may need more */
    EJKI_LENGTH_NEVER,  /* no length under these symbols */
} ejki_length_state;

typedef struct ejki_value {
    ejki_length_state state;
    int64_t value;
    int64_t add, factor, divisor;
    char symbol[EJK_SYMBOL_SIZE]; /* the first that is not bound */
} ejki_value;

/* Moves *at behind a length; false, and *at at what cannot be read. */
bool ejki_length_read(const char **at, ejki_length *out);

/* Under the symbols that `axes` has. */
ejki_value ejki_length_value(const ejki_length *length, const ejk_axes *axes);

/* The same where a negative value is one: a bound of a domain. */
ejki_value ejki_bound_value(const ejki_length *length, const ejk_axes *axes);

/* Solves a LINEAR value for its symbol; false if no length of it gives `length`. */
bool ejki_length_solve(const ejki_value *value, int64_t length, int64_t *out);

/* The next symbol at or after *at that is not before it as well; *at moves behind it. False: no more. */
bool ejki_length_symbol(const ejki_length *length, const char **at, char out[EJK_SYMBOL_SIZE]);

/* True if it is one symbol and nothing else, or a number. */
bool ejki_length_plain(const ejki_length *length);

/* A symbol's first `size` bytes as a name of an axis; false if it is none or too long. */
bool ejki_symbol(const char *text, size_t size, char out[EJK_SYMBOL_SIZE]);

/* Bytes at the start of a text that a symbol may consist of. */
size_t ejki_symbol_size(const char *text);

/* Reads decimal digits and moves behind them; false without digits or above 63 bits. */
bool ejki_digits(const char **text, int64_t *out);

#endif
