/* SPDX-License-Identifier: Apache-2.0 */
/* Suggestions for a mistyped name. */
#ifndef EJK_CLI_SUGGEST_H
#define EJK_CLI_SUGGEST_H

#include <stddef.h>

enum { MOST_SUGGESTIONS = 3 };

/* The nearest names so far; zero-initialise all but `wanted`. */
typedef struct suggestions {
    const char *wanted;
    const char *names[MOST_SUGGESTIONS];
    size_t distances[MOST_SUGGESTIONS];
    int count;
} suggestions;

void suggest_offer(suggestions *near, const char *name);

/* Writes "--causal, --causal-offset"; "" if nothing is near. */
void suggest_list(const suggestions *near, char *out, size_t room);

#endif
