/* SPDX-License-Identifier: Apache-2.0 */
/* Names that somebody who mistyped one may have meant. */
#ifndef EJK_CLI_NEAR_H
#define EJK_CLI_NEAR_H

#include <stddef.h>

enum { NEAR_NAMES = 3 };

/* The nearest so far; zero-initialise all but `wanted`. */
typedef struct near_names {
    const char *wanted;
    const char *names[NEAR_NAMES];
    size_t distances[NEAR_NAMES];
    int count;
} near_names;

void near_offer(near_names *near, const char *name);

/* Writes "--causal, --causal-offset"; "" if nothing is near. */
void near_list(const near_names *near, char *out, size_t room);

#endif
