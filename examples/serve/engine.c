/* SPDX-License-Identifier: Apache-2.0 */
#include "engine.h"

#include <stdlib.h>
#include <string.h>

enum { PAGE = BYTEMIX_PAGE, SLOTS = ENGINE_RUNNING + ENGINE_PREFIXES };

/* Bytes that several prompts begin with: full pages, and the states behind them. */
typedef struct prefix {
    const request *source;  /* whose first bytes they are */
    int length, slot, used; /* `used`: the step when it was last taken */
    int32_t pages[BYTEMIX_TABLE];
} prefix;

struct engine {
    bytemix *model;
    engine_options limits;
    double opened;
    request **requests; /* by age */
    int count, running, step;
    int users[ENGINE_PAGES]; /* texts and prefixes that have a page */
    int32_t free_pages[ENGINE_PAGES];
    int free_page_count;
    int free_slots[SLOTS], free_slot_count;
    prefix prefixes[ENGINE_PREFIXES];
    int prefix_count;
    engine_event *events;
    int event_count;
    /* The batch of a step. */
    request *texts[ENGINE_RUNNING];
    uint8_t bytes[ENGINE_ROWS];
    int32_t starts[ENGINE_RUNNING + 1], lengths[ENGINE_RUNNING], slots[ENGINE_RUNNING];
    int32_t pages[ENGINE_RUNNING * BYTEMIX_TABLE];
    float logits[ENGINE_ROWS * BYTEMIX_VOCABULARY];
};

static int least(int a, int b) {
    return a < b ? a : b;
}

static int pages_of(int length) {
    return (length + PAGE - 1) / PAGE;
}

/* ---- Opening ---------------------------------------------------------------------------------------- */

ejk_status engine_open(bytemix *model, engine_options options, engine **out) {
    if (options.rows > ENGINE_ROWS || options.pages > ENGINE_PAGES ||
        options.running > ENGINE_RUNNING || options.prefixes > ENGINE_PREFIXES)
        return EJK_STATUS_INVALID_ARGUMENT;
    engine *e = calloc(1, sizeof *e);
    if (!e) return EJK_STATUS_OUT_OF_MEMORY;
    e->model = model;
    e->opened = ejk_now();
    e->limits = options;
    for (int i = options.pages; i > 0;) e->free_pages[e->free_page_count++] = --i;
    for (int i = options.running + options.prefixes; i > 0;)
        e->free_slots[e->free_slot_count++] = --i;
    *out = e;
    return EJK_OK;
}

void engine_close(engine *e) {
    if (!e) return;
    for (int i = 0; i < e->count; i++) free(e->requests[i]);
    free(e->requests);
    free(e->events);
    free(e);
}

/* Room for one more; arrays grow when their length is a power of two. NULL if there is no memory. */
static void *grown(void *array, int count, size_t size) {
    return count & (count - 1) ? array : realloc(array, (count ? 2 * (size_t)count : 1) * size);
}

ejk_status engine_submit(engine *e, double time, const uint8_t *prompt, int length, int count) {
    if (length < 1 || count < 1 || length > BYTEMIX_CONTEXT - count ||
        pages_of(length + count) > e->limits.pages)
        return EJK_STATUS_INVALID_ARGUMENT;
    request **all = grown(e->requests, e->count, sizeof *all);
    if (!all) return EJK_STATUS_OUT_OF_MEMORY;
    e->requests = all;
    request *r = all[e->count] = calloc(1, sizeof *r);
    if (!r) return EJK_STATUS_OUT_OF_MEMORY;
    r->id = e->count++;
    memcpy(r->bytes, prompt, (size_t)length);
    r->prompt = r->length = length;
    r->end = length + count;
    r->arrived = time;
    return EJK_OK;
}

/* ---- Pages, slots and prefixes ---------------------------------------------------------------------- */

static void release_pages(engine *e, const int32_t *pages, int count) {
    for (int i = 0; i < count; i++)
        if (--e->users[pages[i]] == 0) e->free_pages[e->free_page_count++] = pages[i];
}

static void release(engine *e, request *r, request_state state) {
    release_pages(e, r->pages, r->page_count);
    e->free_slots[e->free_slot_count++] = r->slot;
    e->running--;
    r->page_count = r->read = 0;
    r->state = state;
}

static void drop_prefix(engine *e, prefix *p) {
    release_pages(e, p->pages, p->length / PAGE);
    e->free_slots[e->free_slot_count++] = p->slot;
    *p = e->prefixes[--e->prefix_count];
}

/* The one that has not been used for longest; false if there is none. */
static bool drop_oldest_prefix(engine *e) {
    prefix *oldest = e->prefixes;
    for (prefix *p = e->prefixes; p < e->prefixes + e->prefix_count; p++)
        if (p->used < oldest->used) oldest = p;
    if (e->prefix_count == 0) return false;
    drop_prefix(e, oldest);
    return true;
}

void engine_drop_prefixes(engine *e) {
    while (drop_oldest_prefix(e)) {
    }
}

static bool begins_with(const request *r, const request *source, int length) {
    return r->length >= length && memcmp(r->bytes, source->bytes, (size_t)length) == 0;
}

/* Leaves what a text has read for others. */
static ejk_status keep_prefix(engine *e, const request *r) {
    if (e->limits.prefixes == 0) return EJK_OK;
    for (int i = 0; i < e->prefix_count; i++)
        if (e->prefixes[i].length == r->read && begins_with(r, e->prefixes[i].source, r->read))
            return EJK_OK;
    if (e->prefix_count == e->limits.prefixes) drop_oldest_prefix(e);
    prefix *p = &e->prefixes[e->prefix_count++];
    *p = (prefix){.source = r,
                  .length = r->read,
                  .slot = e->free_slots[--e->free_slot_count],
                  .used = e->step};
    memcpy(p->pages, r->pages, sizeof p->pages);
    for (int i = 0; i < r->read / PAGE; i++) e->users[p->pages[i]]++;
    return bytemix_copy_slot(e->model, r->slot, p->slot);
}

/* Takes the longest prefix that a text begins with; at least one byte is left to read. */
static ejk_status take_prefix(engine *e, request *r) {
    prefix *best = NULL;
    for (prefix *p = e->prefixes; p < e->prefixes + e->prefix_count; p++)
        if (p->length < r->length && begins_with(r, p->source, p->length) &&
            (!best || p->length > best->length))
            best = p;
    if (!best) return EJK_OK;
    best->used = e->step;
    r->read = best->length;
    r->page_count = best->length / PAGE;
    memcpy(r->pages, best->pages, sizeof r->pages);
    for (int i = 0; i < r->page_count; i++) e->users[r->pages[i]]++;
    return bytemix_copy_slot(e->model, best->slot, r->slot);
}

/* Full pages that the prompt has in common with another, one byte of it left over. */
static int common_pages(const request *r, const request *other) {
    int length = 0;
    const int most = least(r->prompt - 1, other->prompt - 1);
    while (length < most && r->bytes[length] == other->bytes[length]) length++;
    return length / PAGE * PAGE;
}

/* ---- A step ----------------------------------------------------------------------------------------- */

/* Gives slots to those who wait, the oldest first, while what they have to read has room. */
static ejk_status admit(engine *e) {
    for (int i = 0; i < e->count && e->running < e->limits.running; i++) {
        request *r = e->requests[i];
        if (r->state != REQUEST_WAITING) continue;
        r->state = REQUEST_RUNNING;
        r->slot = e->free_slots[--e->free_slot_count];
        e->running++;
        TRY(take_prefix(e, r));
        const int missing = pages_of(r->length + 1) - r->page_count;
        while (e->free_page_count < missing && drop_oldest_prefix(e)) {
        }
        if (e->free_page_count < missing) {
            release(e, r, REQUEST_WAITING);
            return EJK_OK;
        }
        r->shared += r->read;
        r->share = 0;
        for (int k = 0; k < e->count; k++) {
            const int common = k == i ? 0 : common_pages(r, e->requests[k]);
            if (common > r->share && common > r->read) r->share = common;
        }
    }
    return EJK_OK;
}

static void preempt(engine *e, request *r) {
    r->preempted++;
    release(e, r, REQUEST_WAITING);
}

/* The youngest text that is younger than another and not in the batch gives up its pages; false if there is none. */
static bool preempt_younger(engine *e, const request *r) {
    for (int i = e->count - 1; i > r->id; i--)
        if (e->requests[i]->state == REQUEST_RUNNING && e->requests[i]->rows == 0)
            return preempt(e, e->requests[i]), true;
    return false;
}

/* Pages for `length` bytes of a text. */
static bool reserve(engine *e, request *r, int length) {
    while (r->page_count < pages_of(length)) {
        while (e->free_page_count == 0)
            if (!drop_oldest_prefix(e) && !preempt_younger(e, r)) return false;
        const int32_t page = e->free_pages[--e->free_page_count];
        e->users[page] = 1;
        r->pages[r->page_count++] = page;
    }
    return true;
}

/* Those that write first, a byte each, then chunks of what others have to read. */
static bytemix_batch gather(engine *e) {
    bytemix_batch b = {0, 0, e->bytes, e->starts, e->lengths, e->pages, e->slots};
    for (int i = 0; i < e->count; i++) e->requests[i]->rows = 0;
    for (int i = 0; i < 2 * e->count; i++) {
        request *r = e->requests[i % e->count];
        const int pending = r->length - r->read;
        const bool writes = pending == 1;
        if (r->state != REQUEST_RUNNING || writes != (i < e->count)) continue;
        int rows = least(pending, e->limits.rows - b.rows);
        if (r->share > r->read) rows = least(rows, r->share - r->read);
        if (rows == 0) continue;
        if (!reserve(e, r, r->read + rows)) {
            preempt(e, r);
            continue;
        }
        r->rows = rows;
        memcpy(e->bytes + b.rows, r->bytes + r->read, (size_t)rows);
        memcpy(e->pages + b.texts * BYTEMIX_TABLE, r->pages, sizeof r->pages);
        e->texts[b.texts] = r;
        e->lengths[b.texts] = r->read + rows;
        e->slots[b.texts] = r->slot;
        b.rows += rows;
        e->starts[++b.texts] = b.rows;
    }
    return b;
}

/* What follows a text whose bytes are all read. */
static void write_byte(engine *e, request *r, const float *logits) {
    r->bytes[r->length++] = bytemix_likeliest(logits);
    if (r->first == 0) r->first = engine_seconds(e);
    if (r->length < r->end) return;
    r->finished = engine_seconds(e);
    release(e, r, REQUEST_DONE);
}

static ejk_status record(engine *e, const request *r, double start) {
    engine_event *all = grown(e->events, e->event_count, sizeof *all);
    if (!all) return EJK_STATUS_OUT_OF_MEMORY;
    e->events = all;
    const int used = e->limits.pages - e->free_page_count;
    const bool writes = r->read + r->rows == r->length;
    all[e->event_count++] = (engine_event){r->id, r->rows, writes, start, engine_seconds(e), used};
    return EJK_OK;
}

ejk_status engine_step(engine *e, bool *busy) {
    const double start = engine_seconds(e);
    e->step++;
    TRY(admit(e));
    const bytemix_batch b = gather(e);
    *busy = b.texts > 0;
    if (!*busy) return EJK_OK;
    TRY(bytemix_step(e->model, &b, e->logits));
    for (int i = 0; i < b.texts; i++) {
        request *r = e->texts[i];
        TRY(record(e, r, start));
        r->read += r->rows;
        if (r->read == r->share) TRY(keep_prefix(e, r));
        if (r->read == r->length)
            write_byte(e, r, &e->logits[(b.starts[i + 1] - 1) * BYTEMIX_VOCABULARY]);
    }
    return EJK_OK;
}

engine_view engine_look(const engine *e) {
    return (engine_view){e->requests, e->events, e->count, e->event_count, e->free_page_count};
}

double engine_seconds(const engine *e) {
    return ejk_now() - e->opened;
}
