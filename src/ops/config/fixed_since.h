/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that were measured with a library whose results have since been found wrong. */
#ifndef EJKI_OPS_CONFIG_FIXED_SINCE_H
#define EJKI_OPS_CONFIG_FIXED_SINCE_H

#include <stdbool.h>

/* What was stored for an operation by a library before this version counts no more. */
typedef struct ejki_fixed_since {
    const char *op_id;   /* without version; NULL ends a list */
    const char *version; /* "0.2.0": the first that is right */
    const char *reason;  /* for the event */
} ejki_fixed_since;

/* The library's own list. */
extern const ejki_fixed_since ejki_fixed_since_list[];

/*
 * The rule by which a row is of no use; NULL if there is none. `op_id` may end in "@v…"; a version that is
 * not known is older than every other.
 */
const ejki_fixed_since *ejki_outdated(const ejki_fixed_since *list, const char *op_id,
                                      const char *library_version);

#endif
