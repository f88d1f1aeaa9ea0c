/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the workers of the tiled kernel share out its tasks, and the implementations that it makes: the end of
 * tile_body.h, which includes this. Packed sequences are tasks as any others, one after the other in the order
 * of the sequences: which sequence a task is of is found by a prefix sum over their lengths.
 */
/* What the workers of one run share. */
typedef struct tile_shared {
    const ejki_flash_problem *problem;
    tile_plan plan;
    char *workspace;
    int64_t *first; /* of packed sequences: the first task of each part, and the number of all */
    int32_t workers;
    _Atomic int64_t next;
} tile_shared;

/* A worker takes tasks until none is left. */
static void tile_worker(void *argument, int64_t worker) {
    tile_shared *shared = argument;
    const tile_plan *t = &shared->plan;
    tile_state state;
    tile_bind(&state, shared->problem, t, (float *)(void *)(shared->workspace + worker * t->bytes));
    for (;;) {
        int64_t count;
        const int64_t index = tile_claim(t, &shared->next, &count);
        if (index >= t->tasks) return;
        const int64_t others = index + count * shared->workers;
        for (int64_t i = 0; i < count; i++)
            tile_group(&state, tile_task_of(shared->problem, t, index + i),
                       tile_task_of(shared->problem, t, i + 1 < count ? index + i + 1 : others));
    }
}

/* ---- Packed sequences ----------------------------------------------------------------------------- */

/* A part's plan: that of the whole, with groups of at most as many rows. */
static tile_plan tile_part_plan(const ejki_flash_problem *p, const tile_plan *t, int64_t part) {
    tile_plan own = *t;
    const int64_t rows = ejki_flash_part_queries(p, part) * p->group;
    own.rows = ejki_cdiv(rows, ejki_max(1, ejki_cdiv(rows, t->rows)));
    own.rows = ejki_round_up(ejki_max(1, own.rows), TILE_ROWS);
    own.groups = own.parts = ejki_cdiv(rows, own.rows);
    own.unit = rows;
    own.whole = own.tasks = own.groups * p->kv_heads;
    return own;
}

/* Counts the tasks of each part; found anew in every run, since lengths are data. */
static void tile_count_tasks(const tile_shared *s) {
    const ejki_flash_problem *p = s->problem;
    const int64_t parts = ejki_flash_parts(p);
    s->first[0] = 0;
    for (int64_t n = 0; n < parts; n++)
        s->first[n + 1] = s->first[n] + tile_part_plan(p, &s->plan, n).tasks;
}

/* Tasks one by one, whatever sequence they are of: a part's problem and plan stand for the whole's. */
static void tile_packed_worker(void *argument, int64_t worker) {
    tile_shared *shared = argument;
    const int64_t parts = ejki_flash_parts(shared->problem);
    float *memory = (float *)(void *)(shared->workspace + worker * shared->plan.bytes);
    ejki_flash_problem problem;
    tile_plan plan;
    tile_state state;
    for (int64_t part = -1;;) {
        const int64_t index = atomic_fetch_add_explicit(&shared->next, 1, memory_order_relaxed);
        if (index >= shared->first[parts]) return;
        if (part < 0 || index >= shared->first[part + 1]) {
            do part++;
            while (index >= shared->first[part + 1]);
            problem = ejki_flash_part(shared->problem, part);
            plan = tile_part_plan(shared->problem, &shared->plan, part);
            tile_bind(&state, &problem, &plan, memory);
        }
        const int64_t own = index - shared->first[part];
        tile_group(&state, tile_task_of(&problem, &plan, own),
                   tile_task_of(&problem, &plan, own + shared->workers));
    }
}

static ejk_status tile_run_packed(tile_shared *s, const ejk_run *run) {
    s->first = (int64_t *)(void *)(s->workspace + s->plan.bytes * run->workers);
    tile_count_tasks(s);
    ejk_parallel_for(run->threads, run->workers, tile_packed_worker, s);
    return EJK_OK;
}

static ejk_status tile_prepare(const void *problem, const int64_t *parameters, int32_t threads,
                               ejk_launch *launch) {
    const tile_plan t = tile_plan_of(problem, parameters, threads);
    if (t.bytes >= (int64_t)4 << 48 || t.order_bytes >= (int64_t)4 << 48)
        return flash_too_large(problem);
    launch->workers =
        flash_is_light(problem) ? 1 : (int32_t)ejki_max(1, ejki_min(threads, t.groups_in_all));
    launch->workspace_bytes = (size_t)(t.bytes * launch->workers + t.order_bytes);
    if (((const ejki_flash_problem *)problem)->layout != EJKI_FLASH_DENSE)
        launch->workspace_bytes += (size_t)(ejki_flash_parts(problem) + 1) * sizeof(int64_t);
    return EJK_OK;
}

static ejk_status tile_run(const ejk_run *run) {
    tile_shared shared = {
        .problem = run->problem, .workspace = run->workspace, .workers = run->workers};
    shared.plan = tile_plan_of(run->problem, run->parameters, run->workers);
    if (shared.problem->layout != EJKI_FLASH_DENSE) return tile_run_packed(&shared, run);
    if (shared.plan.order_bytes > 0) {
        int64_t *order = (int64_t *)(void *)(shared.workspace + shared.plan.bytes * run->workers);
        tile_order(run->problem, &shared.plan, order);
        shared.plan.order = order;
    }
    if (run->workers == 1)
        tile_worker(&shared, 0);
    else
        ejk_parallel_for(run->threads, run->workers, tile_worker, &shared);
    return EJK_OK;
}

/* Block masks are of whole tensors: parts of packed sequences have none. Sums that are not divided have to be true to
 * f32, which rounded weights are not. */
static bool tile_applicable(const void *problem) {
    const ejki_flash_problem *p = problem;
    if (TILE_UNIT > 1 && !p->normalize) return false;
    return p->layout == EJKI_FLASH_DENSE || ejki_block_mask_is_empty(&p->block_mask);
}

#ifdef TILE_BF16_DOT
#define TILE_SUGGEST ejki_tile_suggest_pairs
#else
#define TILE_SUGGEST ejki_tile_suggest
#endif

static const ejk_parameter tile_parameters[] = {
    {"q_blocksize", 1, 65536, 1, 256, "query rows of a task"},
    {"kv_blocksize", 1, TILE_KEYS, 1, 256, "keys packed at a time"},
};

EJKI_DECLARE(EJKI_THIS_LINE, .version = 1, .parameters = tile_parameters, .parameter_count = 2,
             .suggest = TILE_SUGGEST, .applicable = tile_applicable, .prepare = tile_prepare,
             .run = tile_run)
