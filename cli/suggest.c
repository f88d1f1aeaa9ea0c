/* SPDX-License-Identifier: Apache-2.0 */
#include "suggest.h"

#include <stdio.h>
#include <string.h>

enum { LONGEST = 64 };

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

static char plain(char c) {
    return c == '-' ? '_' : c;
}

/* Letters to change, add or leave out to make one name the other. */
static size_t edits(const char *a, const char *b) {
    size_t length_a = strlen(a), length_b = strlen(b), row[LONGEST + 1];
    if (length_a > LONGEST || length_b > LONGEST) return LONGEST;
    for (size_t j = 0; j <= length_b; j++) row[j] = j;
    for (size_t i = 1; i <= length_a; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= length_b; j++) {
            size_t changed = diagonal + (plain(a[i - 1]) != plain(b[j - 1]));
            diagonal = row[j];
            row[j] = least(changed, 1 + least(row[j], row[j - 1]));
        }
    }
    return row[length_b];
}

/* A part of a name is near it, too: --cap means --logits-soft-cap. */
static size_t distance(const char *wanted, const char *name) {
    size_t changed = edits(wanted, name);
    return strlen(wanted) >= 3 && strstr(name, wanted) ? least(changed, 1) : changed;
}

void suggest_offer(suggestions *near, const char *name) {
    size_t far = distance(near->wanted, name);
    if (far > 1 + strlen(near->wanted) / 4) return;
    int place = near->count;
    while (place > 0 && near->distances[place - 1] > far) place--;
    if (place == MOST_SUGGESTIONS) return;
    if (near->count < MOST_SUGGESTIONS) near->count++;
    for (int i = near->count - 1; i > place; i--) {
        near->names[i] = near->names[i - 1];
        near->distances[i] = near->distances[i - 1];
    }
    near->names[place] = name;
    near->distances[place] = far;
}

void suggest_list(const suggestions *near, char *out, size_t room) {
    size_t used = 0;
    *out = '\0';
    for (int i = 0; i < near->count && used < room; i++)
        used += (size_t)snprintf(out + used, room - used, "%s--%s", i ? ", " : "", near->names[i]);
    for (; *out; out++)
        if (*out == '_') *out = '-';
}
