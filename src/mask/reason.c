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
    static const ejki_named reasons[] = {EJK_SPLASH_REASON_LIST(EJKI_NAMED)};
    return EJKI_NAMED_OF(reasons, reason, "").text;
}

const char *ejk_splash_mask_kind_name(ejk_splash_mask_kind kind) {
    static const ejki_named kinds[] = {EJK_SPLASH_MASK_LIST(EJKI_NAMED)};
    return EJKI_NAMED_OF(kinds, kind, "unknown").text;
}
