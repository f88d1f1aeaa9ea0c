/* SPDX-License-Identifier: Apache-2.0 */
/* JSON of this room's results. NULL travels as in jansson, and is looked at where the text is made. */
#ifndef EJKI_EXECUTION_JSON_H
#define EJKI_EXECUTION_JSON_H

#include <ejkernel/status.h>
#include <jansson.h>

/* null for what no JSON number says. */
json_t *ejki_json_number(double value);

/* A text from outside; one that is not UTF-8 has its other bytes replaced by '?'. */
json_t *ejki_json_words(const char *text);

/*
 * Sets a member to a new value; false if there was no memory, which the caller collects. The value is
 * taken over either way.
 */
bool ejki_json_set(json_t *object, const char *name, json_t *value);

/* `json`, or NULL in its place if something that belongs to it is not whole. */
json_t *ejki_json_whole(json_t *json, bool whole);

/* Takes over `json` and prints it with sorted keys: compact, or by #EJK_JSON_INDENT over lines. NULL, or
 * `complete` false = OUT_OF_MEMORY. */
ejk_status ejki_json_print(json_t *json, bool complete, int flags, char **out);

#endif
