/* SPDX-License-Identifier: Apache-2.0 */
/* The tiers and their features, and the cap that EJKERNEL_ISA puts on them. */
#include "base/base.h"

#include <ejkernel/device.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    ejk_isa isa;
    const char *name;
    ejk_features features, multiplies;
} tiers[] = {
#define TIER(name, number, text, features, multiplies) {EJK_ISA_##name, text, features, multiplies},
    EJK_ISA_LIST(TIER)
#undef TIER
};

#define TIER_LISTED(name, number, text, features, multiplies) " " text
static const char tier_names[] = EJK_ISA_LIST(TIER_LISTED);
#undef TIER_LISTED

enum { TIER_COUNT = sizeof tiers / sizeof tiers[0] };

const char *ejk_isa_name(ejk_isa isa) {
    for (int i = 0; i < TIER_COUNT; i++)
        if (tiers[i].isa == isa) return tiers[i].name;
    return "unknown";
}

ejk_features ejk_isa_features(ejk_isa isa) {
    for (int i = 0; i < TIER_COUNT; i++)
        if (tiers[i].isa == isa) return tiers[i].features;
    return 0;
}

bool ejk_isa_allows(ejk_isa allowed, ejk_isa isa) {
    const ejk_cpu_info *cpu = ejk_cpu();
    ejk_features features = ejk_isa_features(allowed);
    if (allowed == isa) return true;
    if (allowed == cpu->isa) features |= cpu->features;
    for (int i = 0; i < TIER_COUNT; i++)
        if (tiers[i].isa == isa)
            return !(tiers[i].features & ~features) && !(tiers[i].multiplies & cpu->slow);
    return false;
}

const char *ejk_feature_name(ejk_features feature) {
    static const char *const names[64] = {
#define FEATURE(name, bit, text) [bit] = text,
        EJK_FEATURE_LIST(FEATURE)
#undef FEATURE
    };
    const char *name = feature ? names[__builtin_ctzll(feature)] : NULL;
    return name ? name : "unknown";
}

static bool find(const char *name, ejk_isa *out) {
    for (int i = 0; i < TIER_COUNT; i++) {
        if (strcmp(tiers[i].name, name) != 0) continue;
        *out = tiers[i].isa;
        return true;
    }
    return false;
}

ejk_status ejk_isa_from_name(const char *name, ejk_isa *out) {
    if (!name)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "name is NULL; expected a tier's name");
    if (!out)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL; expected where to put a tier");
    if (!find(name, out))
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                         "'%.64s' is no instruction-set tier; these exist:%s", name, tier_names);
    return EJK_OK;
}

/* What EJKERNEL_ISA says; NULL if it says nothing. */
static const char *wish(void) {
    const char *text = getenv("EJKERNEL_ISA");
    return text && *text ? text : NULL;
}

ejk_isa ejk_isa_default(void) {
    const ejk_cpu_info *cpu = ejk_cpu();
    const char *name = wish();
    ejk_isa isa;
    return name && find(name, &isa) && cpu->tiers[isa] ? isa : cpu->isa;
}

ejk_status ejk_isa_environment(void) {
    const char *name = wish();
    if (!name) return EJK_OK;
    ejk_isa isa;
    if (!find(name, &isa))
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                         "EJKERNEL_ISA is '%.64s'; expected an instruction-set tier, one of:%s",
                         name, tier_names);
    const ejk_cpu_info *cpu = ejk_cpu();
    if (!cpu->tiers[isa])
        return ejki_fail(
            EJK_STATUS_UNAVAILABLE,
            "EJKERNEL_ISA is '%s', which this processor lacks; its highest tier is '%s'", name,
            ejk_isa_name(cpu->isa));
    return EJK_OK;
}
