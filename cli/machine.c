/* SPDX-License-Identifier: Apache-2.0 */
#include "machine.h"

#include <stdio.h>

static const ejk_isa isas[] = {
#define ISA(name, number, text, features, multiplies) EJK_ISA_##name,
    EJK_ISA_LIST(ISA)
#undef ISA
};

enum { ISAS = sizeof isas / sizeof *isas };

void machine_tiers(char *out, size_t room) {
    size_t used = 0;
    *out = '\0';
    for (int i = 0; i < ISAS && used < room; i++)
        if (ejk_cpu()->tiers[isas[i]])
            used += (size_t)snprintf(out + used, room - used, "%s%s", used ? " " : "",
                                     ejk_isa_name(isas[i]));
}

const char *machine_bytes(int64_t bytes, char out[32]) {
    const char *unit = "bytes";
    double value = (double)bytes;
    if (bytes >= INT64_C(1) << 30) {
        value /= (double)(INT64_C(1) << 30);
        unit = "GiB";
    } else if (bytes >= 1 << 20) {
        value /= 1 << 20;
        unit = "MiB";
    } else if (bytes >= 1 << 10) {
        value /= 1 << 10;
        unit = "KiB";
    }
    if (bytes > 0)
        snprintf(out, 32, "%.4g %s", value, unit);
    else
        snprintf(out, 32, "unknown");
    return out;
}

static json_t *tiers_json(void) {
    json_t *list = json_array();
    for (int i = 0; i < ISAS; i++)
        if (ejk_cpu()->tiers[isas[i]])
            json_array_append_new(list, json_string(ejk_isa_name(isas[i])));
    return list;
}

static json_t *features_json(ejk_features features) {
    json_t *list = json_array();
    for (; features; features &= features - 1)
        json_array_append_new(list, json_string(ejk_feature_name(features)));
    return list;
}

json_t *machine_json(void) {
    const ejk_cpu_info *cpu = ejk_cpu();
    return json_pack("{s:s, s:s, s:s, s:s, s:s, s:i, s:i, s:i, s:s, s:s, s:o, s:o, s:o, "
                     "s:i, s:i, s:I, s:I, s:I, s:I}",
                     "version", ejk_version(), "build_flags", ejk_build_flags(), "fingerprint",
                     ejk_device_fingerprint(), "name", cpu->name, "vendor", cpu->vendor, "family",
                     (int)cpu->family, "model", (int)cpu->model, "stepping", (int)cpu->stepping,
                     "isa", ejk_isa_name(ejk_isa_default()), "isa_present", ejk_isa_name(cpu->isa),
                     "tiers", tiers_json(), "features", features_json(cpu->features),
                     "slow_features", features_json(cpu->slow), "cores", (int)cpu->cores, "threads",
                     (int)ejk_threads_default(), "l1d_bytes", (json_int_t)cpu->l1d_bytes,
                     "l2_bytes", (json_int_t)cpu->l2_bytes, "l3_bytes", (json_int_t)cpu->l3_bytes,
                     "line_bytes", (json_int_t)cpu->line_bytes);
}
