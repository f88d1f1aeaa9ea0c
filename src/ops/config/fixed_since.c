/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/config/fixed_since.h"

#include <stdlib.h>
#include <string.h>

/* One line for each fault that was fixed, never taken out again. There has been none yet. */
const ejki_fixed_since ejki_fixed_since_list[] = {
    {NULL, NULL, NULL},
};

/* Reads one number of a dotted version and moves behind it and its dot; none is 0. */
static unsigned long next_number(const char **text) {
    unsigned long number = 0;
    while (**text >= '0' && **text <= '9' && number < 1000000)
        number = number * 10 + (unsigned long)(*(*text)++ - '0');
    if (**text == '.') ++*text;
    return number;
}

static bool is_before(const char *a, const char *b) {
    for (int i = 0; i < 4; i++) {
        unsigned long first = next_number(&a), second = next_number(&b);
        if (first != second) return first < second;
    }
    return false;
}

const ejki_fixed_since *ejki_outdated(const ejki_fixed_since *list, const char *op_id,
                                      const char *library_version) {
    size_t length = strcspn(op_id, "@");
    for (; list->op_id; list++)
        if (strlen(list->op_id) == length && strncmp(list->op_id, op_id, length) == 0 &&
            is_before(library_version, list->version))
            return list;
    return NULL;
}
