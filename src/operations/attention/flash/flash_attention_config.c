/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Configurations of flash attention that are worth measuring. What kernels take without is theirs (suggest.c in their
 * folders); a hook that runs in place of one is told the blocks of the tiled and the row-wise kernel.
 */
#include "operations/attention/flash/flash_attention_steps.h"

#include <ejkernel/chooser.h>
#include <ejkernel/flash_attention.h>

#include "operations/attention/shared/suggest.h"

#include <string.h>

void ejki_flash_heuristic_cfg(const ejk_invocation *invocation, void *config) {
    ejk_fwd_params *params = &((ejk_flash_attention_config *)config)->fwd_params;
    ejk_opt_int tile[2] = {{0}}, row[5] = {{0}};
    if (invocation->implementation) return;
    ejki_tile_suggest(invocation->problem, invocation->threads, tile);
    ejki_row_suggest(invocation->problem, invocation->threads, row);
    params->q_blocksize = tile[0];
    params->kv_blocksize = tile[1];
    params->num_key_splits = row[0];
    params->blocksize_keys = row[1];
    params->blocksize_heads = row[2];
    params->prefetch_hint = row[3];
    params->prefetch_bytes = row[4];
}

/* ---- Candidates ------------------------------------------------------------------------------------- */

/* A parameter, its field in the configuration, and the value beyond which nothing changes any more. */
enum { NOT_VARIED = -1 };
typedef struct range {
    const char *name;
    size_t offset;
    int64_t most;
} range;

static ejk_opt_int *value_of(void *config, const range *r) {
    return (ejk_opt_int *)(void *)((char *)config + r->offset);
}

static bool takes(const ejk_implementation *chosen, const char *name) {
    for (int32_t i = 0; chosen && i < chosen->parameter_count; i++)
        if (strcmp(chosen->parameters[i].name, name) == 0) return true;
    return false;
}

/* Candidates that the implementation lists, over what it suggests. */
static ejk_status list_declared(const ejk_invocation *invocation, const range *ranges,
                                int32_t how_many, void *configs, int32_t capacity, int32_t *count) {
    const ejk_implementation *chosen = invocation->implementation;
    ejk_flash_attention_config base, *list = configs;
    EJKI_TRY(ejk_invocation_heuristics(invocation, &base));
    for (*count = 0; *count < chosen->candidate_count && *count < capacity; ++*count) {
        const int64_t *value = chosen->candidates[*count].value;
        list[*count] = base;
        for (int32_t i = 0; i < chosen->parameter_count; i++)
            for (int32_t r = 0; value[i] != 0 && r < how_many; r++)
                if (strcmp(ranges[r].name, chosen->parameters[i].name) == 0)
                    *value_of(&list[*count], &ranges[r]) = ejk_int(value[i]);
    }
    return EJK_OK;
}

/* All pairs of factors, the small changes first: what is tried under a short budget. */
static const double factors[][2] = {
    {0.5, 1},  {2, 1}, {1, 0.5},  {1, 2}, {0.5, 0.5}, {2, 2},   {0.5, 2},    {2, 0.5},
    {0.25, 1}, {4, 1}, {1, 0.25}, {1, 4}, {0.25, 2},  {4, 0.5}, {0.25, 0.5}, {4, 2},
};

/* Candidates that the implementation lists; else the first two parameters that it takes, varied. */
static ejk_status vary(const ejk_invocation *invocation, const range *ranges, int32_t how_many,
                       void *configs, int32_t capacity, int32_t *count) {
    ejk_flash_attention_config base, *list = configs;
    const range *pair[2];
    int32_t found = 0;
    if (invocation->implementation && invocation->implementation->candidate_count > 0)
        return list_declared(invocation, ranges, how_many, configs, capacity, count);
    for (int32_t i = 0; i < how_many && found < 2; i++)
        if (ranges[i].most != NOT_VARIED && takes(invocation->implementation, ranges[i].name))
            pair[found++] = &ranges[i];
    *count = 0;
    if (found < 2) return EJK_OK; /* as the reference and the small kernel */
    EJKI_TRY(ejk_invocation_heuristics(invocation, &base));
    for (size_t f = 0; f < sizeof factors / sizeof *factors && *count < capacity; f++) {
        ejk_flash_attention_config *own = &list[*count];
        *own = base;
        for (int i = 0; i < 2; i++) {
            ejk_opt_int *value = value_of(own, pair[i]);
            const int64_t wish = (int64_t)((double)value->value * factors[f][i]);
            *value = ejk_int(ejki_clamp(wish, 1, ejki_max(1, pair[i]->most)));
        }
        (*count)++;
    }
    return EJK_OK;
}

ejk_status ejki_flash_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                     int32_t capacity, int32_t *count) {
#define PLACE(field) offsetof(ejk_flash_attention_config, fwd_params.field)
    const ejki_flash_problem *p = invocation->problem;
    const range ranges[] = {
        {"q_blocksize", PLACE(q_blocksize), p->queries * p->group},
        {"kv_blocksize", PLACE(kv_blocksize), ejki_whole_keys(p->keys)},
        {"num_key_splits", PLACE(num_key_splits), ejki_cdiv(p->keys, 32)},
        {"blocksize_keys", PLACE(blocksize_keys), ejki_whole_keys(p->keys)},
        {"num_warps", PLACE(num_warps), NOT_VARIED},
        {"num_stages", PLACE(num_stages), NOT_VARIED},
    };
#undef PLACE
    return vary(invocation, ranges, (int32_t)(sizeof ranges / sizeof *ranges), configs, capacity,
                count);
}

ejk_status ejki_flash_vjp_candidate_cfgs(const ejk_invocation *invocation, void *configs,
                                         int32_t capacity, int32_t *count) {
#define PLACE(field) offsetof(ejk_flash_attention_config, bwd_params.field)
    const ejki_flash_problem *p = &((const ejki_flash_vjp_problem *)invocation->problem)->forward;
    const range ranges[] = {
        {"q_blocksize", PLACE(q_blocksize), ejki_min(512, p->queries * p->group)},
        {"kv_blocksize", PLACE(kv_blocksize), ejki_min(512, ejki_whole_keys(p->keys))},
        {"num_warps", PLACE(num_warps), NOT_VARIED},
        {"num_stages", PLACE(num_stages), NOT_VARIED},
    };
#undef PLACE
    return vary(invocation, ranges, (int32_t)(sizeof ranges / sizeof *ranges), configs, capacity,
                count);
}
