/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A problem over pages as flash attention's kernels for sm_90a see it: packed sequences, whose keys are in pages. Where
 * a sequence may have many tokens, they are launched twice: for those that do, with higher tiles, and for others.
 */
#include "operations/paged/cuda/prefill_sm90.h"

#define FAR (INT64_C(1) << 61)

/* Tokens: in high tiles 512 take a fifth longer than in low ones, and 4096 an eighth less. */
enum { MANY = 1536, WIDE = 64 };

enum { LOW, HIGH };

static ejki_cuda_pages pages_of(const paged_problem *p, int tiles, bool has_both) {
    const bool lists = p->tables == PAGED_LISTS;
    const int64_t size = p->count.wide ? 8 : 4;
    return (ejki_cuda_pages){
        .table = p->table.data,
        .lists = lists ? p->lists.data : NULL,
        .lens = p->lens.data,
        .count = p->count.data ? (const char *)p->count.data + p->count_at * size : NULL,
        .step = p->table_step,
        .key_page = p->key.page,
        .value_page = p->value.page,
        .entries = (int)p->width,
        .page = (int)p->page,
        .pages = (int)p->pages,
        .few = PAGED_FEW,
        .least = tiles == HIGH ? MANY + 1 : 0,
        .many = tiles == LOW && has_both ? MANY : INT32_MAX,
        .table_is_i64 = p->table.wide,
        .lists_are_i64 = p->lists.wide,
        .lens_are_i64 = p->lens.wide,
        .count_is_i64 = p->count.wide,
    };
}

static ejki_bthd rows_of(const paged_rows *rows) {
    return (ejki_bthd){rows->data, 0, rows->token, rows->head};
}
static ejki_bthd cache_of(const paged_cache *c) {
    return (ejki_bthd){c->data, 0, c->token, c->head};
}

static ejki_flash_problem flash_of(const paged_problem *p) {
    return (ejki_flash_problem){
        .batch = p->sequences,
        .queries = p->tokens,
        .keys = ejki_min(p->width * p->page, 1 << 29),
        .query_heads = p->heads,
        .kv_heads = p->kv_heads,
        .group = p->group,
        .head_dim = p->dim,
        .value_dim = p->value_dim,
        .dtype = (ejk_dtype)p->query.dtype,
        .query = rows_of(&p->query),
        .key = cache_of(&p->key),
        .value = cache_of(&p->value),
        .out = rows_of(&p->out),
        .lse = {p->lse.data, 0, p->lse.head, p->lse.token},
        .wants_lse = true,
        .mask_group = 1,
        .has_sinks = p->sink_count > 0,
        .sinks = p->sinks,
        .sink_count = p->sink_count,
        .sink_stride_h = p->sink_step,
        .sink_group = ejki_max(p->sink_group, 1),
        .scale = p->scale,
        .soft_cap = p->cap,
        .first_offset = p->left < 0 ? -FAR : -p->left,
        .last_offset = 0,
        .normalize = true,
        .layout = EJKI_FLASH_TOKENS,
        .sums_are_i64 = p->starts.wide,
        .query_sums = p->starts.data,
        .key_sums = p->starts.data,
        .ends_together = true,
    };
}

/* Are high tiles better than low ones for some sequence that there may be? */
static bool has_both(const paged_problem *p, const ejki_flash_problem *flash) {
    const ejki_cuda_pages pages = pages_of(p, HIGH, true);
    return p->tokens > MANY && (p->dim > WIDE || p->value_dim > WIDE) &&
           ejki_sm90_takes_pages(flash, &pages);
}

/* Sequences of their own rows and tables, whole pages, and no options that flash attention does not have. */
bool ejki_paged_cuda_takes_sm90(const paged_problem *p, int32_t device) {
    const ejk_gpu_info *gpu;
    if (ejki_cuda_gpu(device, &gpu) != EJK_OK || gpu->capability != 90) return false;
    const bool tables = p->tables == PAGED_TABLE || p->tables == PAGED_LISTS;
    if (!tables || p->rows_each > 0 || p->batch_rows > 0 || !p->causal || p->has_alibi ||
        p->has_bias || p->slots != p->pages * p->page || p->tail_dim > 0 ||
        p->out.dtype != p->query.dtype || p->pages >= INT32_MAX || p->width >= INT32_MAX ||
        (p->sink_count > 0 && p->sink_dtype != p->query.dtype) || (float)p->scale <= 0)
        return false;
    const ejki_flash_problem flash = flash_of(p);
    const ejki_cuda_pages pages = pages_of(p, LOW, false);
    return ejki_sm90_takes_pages(&flash, &pages);
}

void ejki_paged_cuda_want_sm90(const paged_problem *p, int32_t slot, ejki_cuda_kernels *kernels) {
    const ejki_flash_problem flash = flash_of(p);
    const bool both = has_both(p, &flash);
    for (int tiles = LOW; tiles <= (both ? HIGH : LOW); tiles++) {
        const ejki_cuda_pages pages = pages_of(p, tiles, both);
        ejki_sm90_want_pages(&flash, &pages, slot + tiles * EJKI_SM90_PAGES_SLOTS, kernels);
    }
}

/* Of one of the launches, a multiple of 256. */
static ejk_status bytes_of(const ejki_flash_problem *flash, const ejki_cuda_pages *pages,
                           int32_t device, int64_t *out) {
    EJKI_TRY(ejki_sm90_pages_bytes(flash, pages, device, out));
    *out = ejki_round_up(*out, 256);
    return EJK_OK;
}

ejk_status ejki_paged_cuda_sm90_bytes(const paged_problem *p, int32_t device, int64_t *out) {
    const ejki_flash_problem flash = flash_of(p);
    const bool both = has_both(p, &flash);
    *out = 0;
    for (int tiles = LOW; tiles <= (both ? HIGH : LOW); tiles++) {
        const ejki_cuda_pages pages = pages_of(p, tiles, both);
        int64_t bytes;
        EJKI_TRY(bytes_of(&flash, &pages, device, &bytes));
        *out += bytes;
    }
    return EJK_OK;
}

ejk_status ejki_paged_cuda_begin_sm90(const ejk_run *run, const paged_problem *p, int32_t slot,
                                      void *workspace) {
    const ejki_flash_problem flash = flash_of(p);
    const bool both = has_both(p, &flash);
    char *own = workspace;
    for (int tiles = both ? HIGH : LOW; tiles >= LOW; tiles--) { /* the longest first */
        const ejki_cuda_pages pages = pages_of(p, tiles, both);
        int64_t bytes;
        EJKI_TRY(bytes_of(&flash, &pages, run->device, &bytes));
        EJKI_TRY(
            ejki_sm90_begin_pages(run, &flash, &pages, slot + tiles * EJKI_SM90_PAGES_SLOTS, own));
        own += bytes;
    }
    return EJK_OK;
}
