/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of flash attention that are worth measuring on a GPU. */
#include "operations/attention/flash/flash_attention_steps.h"

#include <ejkernel/chooser.h>
#include <ejkernel/flash_attention.h>

#include "base/base.h"

/* Is it a kernel that keeps a copying warpgroup, with tiles of one query head? */
static bool has_copier(const ejk_implementation *chosen) {
    return chosen && chosen->least_capability == 90;
}

/* Queries, keys, warps, stages. */
static void set_tiles(ejk_fwd_params *params, int64_t queries, int64_t keys, int64_t warps,
                      int64_t stages) {
    params->q_blocksize = ejk_int(queries);
    params->kv_blocksize = ejk_int(keys);
    params->num_warps = ejk_int(warps);
    params->num_stages = ejk_int(stages);
}

/* Rows, keys, warps, stages. */
static const int64_t forward[][4] = {
    {128, 64, 4, 2}, {64, 64, 4, 2}, {128, 128, 4, 2}, {128, 32, 4, 2}, {128, 64, 8, 2},
    {64, 128, 4, 2}, {64, 32, 4, 3}, {32, 64, 2, 2},   {16, 64, 1, 2},  {16, 32, 1, 3},
};
static const int64_t backward[][4] = {
    {64, 64, 4, 2}, {32, 64, 4, 2}, {64, 32, 4, 2}, {32, 32, 4, 2}, {64, 64, 8, 2}, {64, 64, 4, 1},
};

/* Queries, keys, warps, stages. */
static const int64_t copied[][4] = {
    {128, 128, 8, 2}, {128, 128, 8, 3}, {192, 128, 12, 2}, {192, 80, 12, 2},
    {192, 64, 12, 3}, {256, 64, 16, 8}, {64, 64, 12, 3},   {64, 128, 8, 2},
};

static bool has_parameters(const ejk_invocation *invocation) {
    return invocation->implementation->parameter_count > 3;
}

ejk_status ejki_flash_gpu_candidate_cfgs(const ejk_invocation *invocation,
                                         ejk_flash_attention_config *list, int32_t capacity,
                                         int32_t *count) {
    ejk_flash_attention_config base;
    *count = 0;
    if (!has_parameters(invocation)) return EJK_OK;
    EJKI_TRY(ejk_invocation_heuristics(invocation, &base));
    const bool copier = has_copier(invocation->implementation);
    const int64_t(*tiles)[4] = copier ? copied : forward;
    const size_t known = copier ? sizeof copied / sizeof *copied : sizeof forward / sizeof *forward;
    for (size_t i = 0; i < known && *count < capacity; i++) {
        list[*count] = base;
        set_tiles(&list[(*count)++].fwd_params, tiles[i][0], tiles[i][1], tiles[i][2], tiles[i][3]);
    }
    return EJK_OK;
}

ejk_status ejki_flash_gpu_vjp_candidate_cfgs(const ejk_invocation *invocation,
                                             ejk_flash_attention_config *list, int32_t capacity,
                                             int32_t *count) {
    ejk_flash_attention_config base;
    *count = 0;
    if (!has_parameters(invocation)) return EJK_OK;
    EJKI_TRY(ejk_invocation_heuristics(invocation, &base));
    for (size_t i = 0; i < sizeof backward / sizeof *backward && *count < capacity; i++) {
        ejk_bwd_params *params = &list[*count].bwd_params;
        list[*count] = base;
        params->q_blocksize = ejk_int(backward[i][0]);
        params->kv_blocksize = ejk_int(backward[i][1]);
        params->num_warps = ejk_int(backward[i][2]);
        params->num_stages = ejk_int(backward[i][3]);
        (*count)++;
    }
    return EJK_OK;
}
