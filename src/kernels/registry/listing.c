/* SPDX-License-Identifier: Apache-2.0 */
/* What a registry holds, listed and compared. */
#include "base/base.h"
#include "kernels/registry/registry.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

static int by_name(const void *a, const void *b) {
    return strcasecmp(*(const char *const *)a, *(const char *const *)b);
}

/* Drops repetitions from a sorted list; returns how many names remain. */
static size_t unique(const char **names, size_t count) {
    size_t kept = 0;
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || !ejki_same_name(names[kept - 1], names[i])) names[kept++] = names[i];
    return kept;
}

static char *join(const char **names, size_t count) {
    size_t bytes = 1;
    for (size_t i = 0; i < count; i++) bytes += strlen(names[i]) + 2;
    char *text = malloc(bytes), *end = text;
    if (!text) return NULL;
    for (size_t i = 0; i < count; i++) {
        if (i > 0) {
            *end++ = ',';
            *end++ = ' ';
        }
        for (const char *c = names[i]; *c; c++) *end++ = (char)tolower((unsigned char)*c);
    }
    *end = '\0';
    return text;
}

ejk_status ejk_registry_list_algorithms(const ejk_registry *registry, char **out) {
    if (!registry || !out) return ejki_missing(registry ? "out" : "registry");
    /* Entries that others add meanwhile are left out: the count is taken once. */
    size_t count = (size_t)ejk_registry_count(registry), used = 0;
    const char **names = malloc((count + 1) * sizeof *names);
    if (!names) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %zu names", count);
    EJKI_REGISTRY_EACH(e, registry)
    if (used < count) names[used++] = e->algorithm;
    qsort(names, used, sizeof *names, by_name);
    char *text = join(names, unique(names, used));
    free(names);
    if (!text) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for the list of algorithms");
    *out = text;
    return EJK_OK;
}

/* Puts an entry behind those that are not less preferred; the last one falls off a full list. */
static void insert(const ejk_implementation **entries, int32_t used, int32_t capacity,
                   const ejk_implementation *e) {
    int32_t place = used;
    while (place > 0 && ejki_preferred(e, entries[place - 1])) place--;
    if (place == capacity) return;
    int32_t moved = (used < capacity ? used : capacity - 1) - place;
    memmove(entries + place + 1, entries + place, (size_t)moved * sizeof *entries);
    entries[place] = e;
}

ejk_status ejk_registry_list_implementations(const ejk_registry *registry, const char *algorithm,
                                             const ejk_implementation **entries, int32_t capacity,
                                             int32_t *count) {
    if (!registry) return ejki_missing("registry");
    if (!algorithm) return ejki_missing("algorithm");
    if (!count) return ejki_missing("count");
    if (capacity < 0)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "capacity is %d; expected 0 or more",
                         (int)capacity);
    if (!entries && capacity > 0) return ejki_missing("entries");
    int32_t found = 0;
    EJKI_REGISTRY_EACH(e, registry) {
        if (!ejki_same_name(e->algorithm, algorithm)) continue;
        insert(entries, found < capacity ? found : capacity, capacity, e);
        found++;
    }
    *count = found;
    return EJK_OK;
}

/* ---- Signatures ----------------------------------------------------------------------------------- */

/* The next part of a name between slashes that is not the tier; its length is 0 at the end. */
static const char *part(const char **name, const char *tier, size_t *length) {
    for (;;) {
        const char *start = *name;
        *length = strcspn(start, "/");
        *name = start + *length + (start[*length] == '/');
        if (*length == 0 && **name == '\0') return start;
        if (*length != strlen(tier) || strncasecmp(start, tier, *length) != 0) return start;
    }
}

/* True if both names say the same once the tier is left out: f32/avx2/tile and f32/avx512/tile do. */
static bool siblings(const ejk_implementation *a, const ejk_implementation *b) {
    if (a->platform != b->platform || !ejki_same_name(a->algorithm, b->algorithm)) return false;
    const char *names[2] = {a->name, b->name};
    for (;;) {
        size_t length_a, length_b;
        const char *part_a = part(&names[0], ejk_isa_name(a->isa), &length_a);
        const char *part_b = part(&names[1], ejk_isa_name(b->isa), &length_b);
        if (length_a != length_b || strncasecmp(part_a, part_b, length_a) != 0) return false;
        if (length_a == 0) return true;
    }
}

static ejk_status compare(const ejk_implementation *a, const ejk_implementation *b) {
    if (a->parameter_count != b->parameter_count)
        return ejki_fail(EJK_STATUS_MISMATCH,
                         "%.64s: '%.64s' takes %d parameters, '%.64s' takes %d", a->algorithm,
                         a->name, (int)a->parameter_count, b->name, (int)b->parameter_count);
    for (int32_t i = 0; i < a->parameter_count; i++) {
        const ejk_parameter *p = a->parameters + i, *q = b->parameters + i;
        if (!ejki_same_name(p->name, q->name))
            return ejki_fail(
                EJK_STATUS_MISMATCH,
                "%.64s: parameter %d of '%.64s' is '%.64s', that of '%.64s' is '%.64s'",
                a->algorithm, (int)i, a->name, p->name, b->name, q->name);
        if (p->minimum != q->minimum || p->maximum != q->maximum || p->step != q->step)
            return ejki_fail(
                EJK_STATUS_MISMATCH,
                "%.64s: '%.64s' is %lld to %lld by %lld for '%.64s', %lld to %lld by %lld "
                "for '%.64s'",
                a->algorithm, p->name, (long long)p->minimum, (long long)p->maximum,
                (long long)p->step, a->name, (long long)q->minimum, (long long)q->maximum,
                (long long)q->step, b->name);
    }
    return EJK_OK;
}

ejk_status ejk_registry_validate_signatures(const ejk_registry *registry, const char *algorithm) {
    if (!registry) return ejki_missing("registry");
    bool known = !algorithm;
    EJKI_REGISTRY_EACH(a, registry) {
        if (algorithm && !ejki_same_name(a->algorithm, algorithm)) continue;
        known = true;
        for (const ejk_implementation *b = ejki_registry_next(registry, a); b;
             b = ejki_registry_next(registry, b))
            if (siblings(a, b)) EJKI_TRY(compare(a, b));
    }
    return known ? EJK_OK : ejki_unknown_algorithm(registry, algorithm);
}
