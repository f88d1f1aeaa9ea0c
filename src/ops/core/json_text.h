/* SPDX-License-Identifier: Apache-2.0 */
/* JSON as a text for ejk_free(). */
#ifndef EJKI_OPS_CORE_JSON_TEXT_H
#define EJKI_OPS_CORE_JSON_TEXT_H

#include <ejkernel/status.h>

struct json_t;

/*
 * Writes with jansson's flags into memory of malloc(): jansson's own allocator may be the application's.
 * OUT_OF_MEMORY, also for NULL `json`.
 */
ejk_status ejki_json_text(const struct json_t *json, size_t flags, char **out);

#endif
