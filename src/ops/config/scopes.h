/* SPDX-License-Identifier: Apache-2.0 */
/* The scopes that the calling thread is in. */
#ifndef EJKI_OPS_CONFIG_SCOPES_H
#define EJKI_OPS_CONFIG_SCOPES_H

#include <ejkernel/selector.h>

/* The innermost ones; NULL outside of any. */
const ejk_overlay_scope *ejki_overlay_scope(void);
const ejk_policy_scope *ejki_policy_scope(void);

/* A number for the state of all scopes of this thread, 0 outside of any: two states that may lead to
 * different choices have different numbers, whichever threads they belong to. */
uint64_t ejki_scopes_number(void);

#endif
