/* SPDX-License-Identifier: Apache-2.0 */
/* Reasons beside the sentences, and the names of this room's enumerations. */
#include "mask/mask.h"

static _Thread_local ejk_splash_reason last_reason;

void ejki_splash_reason_set(ejk_splash_reason reason) {
    last_reason = reason;
}

ejk_splash_reason ejk_splash_last_reason(void) {
    return last_reason;
}

const char *ejk_splash_reason_name(ejk_splash_reason reason) {
    switch (reason) {
#define NAME(name, number, text)                                                                   \
    case EJK_SPLASH_REASON_##name: return text;
        EJK_SPLASH_REASON_LIST(NAME)
#undef NAME
    }
    return "";
}

const char *ejk_splash_mask_kind_name(ejk_splash_mask_kind kind) {
    switch (kind) {
#define NAME(name, number, text)                                                                   \
    case EJK_SPLASH_MASK_##name: return text;
        EJK_SPLASH_MASK_LIST(NAME)
#undef NAME
    }
    return "unknown";
}
