/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of the machine as texts and JSON, for every command that states them. */
#ifndef EJK_CLI_MACHINE_H
#define EJK_CLI_MACHINE_H

#include "cli.h"

/* "scalar avx2 avx512": tiers present, lowest first. */
void machine_tiers(char *out, size_t room);

/* "48 KiB"; "unknown" for 0. Returns `out`. */
const char *machine_bytes(int64_t bytes, char out[32]);

/* All facts; a new reference. */
json_t *machine_json(void);

#endif
