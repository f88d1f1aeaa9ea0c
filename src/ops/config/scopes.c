/* SPDX-License-Identifier: Apache-2.0 */
#include "ops/config/scopes.h"

#include <stdatomic.h>

static _Thread_local ejk_overlay_scope *overlays;
static _Thread_local ejk_policy_scope *policies;

/* Every scope of the process gets a number of its own. The only state that threads share here, and no
 * answer depends on its value. */
static uint64_t new_number(void) {
    static _Atomic(uint64_t) numbers;
    return atomic_fetch_add_explicit(&numbers, 1, memory_order_relaxed) + 1;
}

const ejk_overlay_scope *ejki_overlay_scope(void) {
    return overlays;
}

const ejk_policy_scope *ejki_policy_scope(void) {
    return policies;
}

/* The innermost scope's number tells its outer ones too: they were begun before it and cannot change while
 * it lasts. What an overlay holds may change. */
uint64_t ejki_scopes_number(void) {
    uint64_t number = 0;
    for (const ejk_overlay_scope *o = overlays; o; o = o->outer)
        number = number * 31 + (o->cache ? ejk_config_cache_generation(o->cache) : 0);
    if (overlays) number = number * 0x9e3779b97f4a7c15u + overlays->number;
    if (policies) number = number * 0x9e3779b97f4a7c15u + policies->number;
    return overlays || policies ? number | UINT64_C(1) << 63 : 0;
}

void ejk_overlay_cache_begin(ejk_overlay_scope *scope, const ejk_config_cache *cache) {
    *scope = (ejk_overlay_scope){cache, overlays, new_number()};
    overlays = scope;
}

void ejk_overlay_cache_end(ejk_overlay_scope *scope) {
    for (const ejk_overlay_scope *o = overlays; o; o = o->outer)
        if (o == scope) {
            overlays = scope->outer;
            return;
        }
}

void ejk_policy_override_begin(ejk_policy_scope *scope, const ejk_config_selector_chain *chain,
                               const ejk_autotune_policy *policy) {
    *scope = (ejk_policy_scope){chain, policy ? *policy : (ejk_autotune_policy){0}, policies,
                                new_number()};
    policies = scope;
}

void ejk_policy_override_end(ejk_policy_scope *scope) {
    for (const ejk_policy_scope *p = policies; p; p = p->outer)
        if (p == scope) {
            policies = scope->outer;
            return;
        }
}
