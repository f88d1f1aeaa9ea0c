/* SPDX-License-Identifier: Apache-2.0 */
/* The documented file: its keys, "<device>|<op_id>|<call_key>", and where what it has no place for stands. */
#ifndef EJKI_OPS_CONFIG_DOCUMENT_H
#define EJKI_OPS_CONFIG_DOCUMENT_H

#include "ops/config/entry.h"

/* The key of what is not documented, and the version of its form. */
#define EJKI_DOCUMENT_MORE "$ejkernel"
#define EJKI_DOCUMENT_FORM 1

/* Room of a documented key. */
#define EJKI_DOCUMENT_KEY_SIZE (3 * EJK_CONFIG_KEY_SIZE)

/* Joins the triple of a key; what does not fit is cut. */
void ejki_document_key_join(const ejk_config_key *key, char out[EJKI_DOCUMENT_KEY_SIZE]);

/*
 * Splits a text from its end, as the device has a `|` of its own. The parts of *out lie in `parts`.
 * MALFORMED: fewer than two `|`, or too long.
 */
ejk_status ejki_document_key_split(const char *text, char parts[EJKI_DOCUMENT_KEY_SIZE],
                                   ejk_config_key *out);

#endif
