/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prefilling over pages of bf16. To flash attention's kernel on AMX a sequence is one of a batch, of which a task has
 * some rows of one KV head; rows of a chunk of keys are found in the table and brought side by side before they are
 * packed. Weights are made beside the products there, so that what is left is the table.
 */
#include "operations/paged/cpu/amx/paged_prefill.h"

#include "operations/attention/cpu/amx/amx_task.h"

/* Offsets of positions that hide nothing. */
#define WITHOUT_END (INT64_C(1) << 61)

/* A sequence as flash attention has it, or, without one, the longest that a call may have. */
static ejki_flash_problem dense_of(const paged_problem *p, const paged_sequence *s) {
    ejki_flash_problem d = {.batch = 1,
                            .queries = s ? s->rows : p->tokens,
                            .keys = s ? s->keys : ejki_max(p->tokens, p->width * p->page),
                            .query_heads = p->heads,
                            .kv_heads = p->kv_heads,
                            .group = p->group,
                            .head_dim = p->dim,
                            .value_dim = p->value_dim,
                            .dtype = EJK_DTYPE_BF16,
                            .has_sinks = p->sink_count > 0,
                            .mask_group = 1,
                            .sinks = p->sinks,
                            .sink_count = p->sink_count,
                            .sink_stride_h = p->sink_step,
                            .sink_group = p->sink_group,
                            .scale = p->scale,
                            .soft_cap = p->cap,
                            .first_offset = -WITHOUT_END,
                            .last_offset = WITHOUT_END,
                            .normalize = true,
                            .layout = EJKI_FLASH_DENSE};
    if (!s) return d;
    d.query = (ejki_bthd){amx_address(p->query.data, s->begin * p->query.token),
                          .stride_t = p->query.token, .stride_h = p->query.head};
    d.out = (ejki_bthd){amx_address(p->out.data, s->begin * p->out.token), .stride_t = p->out.token,
                        .stride_h = p->out.head};
    if (p->left >= 0) d.first_offset = ejki_max(s->keys - s->rows - p->left, -WITHOUT_END);
    if (p->causal) d.last_offset = s->keys - s->rows;
    return d;
}

/* With room for a task of most_rows: as if these were all, since those of a sequence are shared out evenly there. */
static amx_plan plan_of(const paged_problem *p, paged_size most_rows, paged_size keys) {
    ejki_flash_problem d = dense_of(p, NULL);
    d.queries = ejki_cdiv(most_rows, p->group);
    const int64_t parameters[2] = {d.queries * p->group, keys};
    return amx_plan_of(&d, parameters, 1);
}

static paged_size copy_elements(const paged_problem *p) {
    return AMX_CHUNK * (ejki_round_up(p->dim, 32) + ejki_round_up(p->value_dim, 32));
}

paged_size ejki_paged_prefill_bytes(const paged_problem *p, paged_size most_rows, paged_size keys) {
    return plan_of(p, most_rows, keys).bytes + 2 * copy_elements(p);
}

/* Where the keys from `key` on lie; those that no row of the item sees are zeros. */
static void find(const void *context, int64_t key, amx_places *places) {
    const ejki_paged_prefill *item = context;
    const paged_problem *p = item->p;
    const int64_t low = ejki_max(item->low, key), high = ejki_min(item->high, key + AMX_CHUNK);
    for (int64_t i = 0; i < AMX_CHUNK; i++) places->key[i] = places->value[i] = item->zeros;
    for (int64_t t = low; t < high;) {
        const int64_t entry = t / p->page, end = ejki_min(high, (entry + 1) * p->page);
        const int64_t page = paged_page(p, item->s.n, item->entries, entry),
                      at = t - entry * p->page;
        const paged_cache *k = &p->key, *v = &p->value;
        const char *from =
            amx_address(k->data, page * k->page + at * k->token + item->head * k->head);
        const char *with =
            amx_address(v->data, page * v->page + at * v->token + item->head * v->head);
        for (; t < end; t++, from += 2 * k->token, with += 2 * v->token) {
            places->key[t - key] = from;
            places->value[t - key] = with;
        }
    }
}

void ejki_paged_attend(const ejki_paged_prefill *item) {
    const ejki_flash_problem d = dense_of(item->p, &item->s);
    amx_plan plan = plan_of(item->p, item->most_rows, item->keys);
    const amx_task task = {.kv_head = item->head, .first_row = item->first_row, .rows = item->rows};
    amx_pages pages = {
        .find = find, .context = item, .copy = (uint16_t *)(void *)(item->memory + plan.bytes)};
    amx_state state;
    plan.slots = plan.chunks * AMX_CHUNK >= d.keys ? 1 : plan.rows / AMX_ROWS;
    amx_bind(&state, &d, &plan, item->memory);
    state.pages = &pages;
    amx_open();
    amx_group(&state, task, 0);
    amx_close();
}
