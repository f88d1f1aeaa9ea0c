/* SPDX-License-Identifier: Apache-2.0 */
#include "support/gpu_mirror.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CANARY = 4096 };

static void need(ejk_status status) {
    if (status == EJK_OK) return;
    printf("FAIL on the GPU: %s\n", ejk_last_error());
    fflush(stdout);
    _Exit(EXIT_FAILURE);
}

static void copy(void *to, bool to_gpu, const void *from, bool from_gpu, size_t bytes) {
    const int64_t shape[] = {(int64_t)bytes};
    void *source = (void *)(uintptr_t)from;
    const ejk_tensor a = from_gpu ? ejk_device_tensor(source, 0, EJK_DTYPE_U8, 1, shape)
                                  : ejk_tensor_contiguous(source, EJK_DTYPE_U8, 1, shape);
    const ejk_tensor b = to_gpu ? ejk_device_tensor(to, 0, EJK_DTYPE_U8, 1, shape)
                                : ejk_tensor_contiguous(to, EJK_DTYPE_U8, 1, shape);
    if (bytes > 0) need(ejk_device_copy(&a, &b, NULL));
}

void gpu_mirror_create(struct gpu_mirror *m, size_t size) {
    void *memory;
    need(ejk_device_allocate(0, size, &memory));
    *m = (struct gpu_mirror){
        .memory = memory, .size = size, .exact = getenv("EJK_TEST_EXACT") != NULL};
}

void gpu_mirror_destroy(struct gpu_mirror *m) {
    need(ejk_device_free(0, m->memory));
}

void gpu_mirror_reset(struct gpu_mirror *m) {
    for (int i = 0; i < m->count; i++) need(ejk_device_free(0, m->buffers[i].own));
    need(ejk_device_free(0, m->workspace));
    m->workspace = NULL;
    m->used = 0;
    m->count = 0;
}

static unsigned char *take(struct gpu_mirror *m, size_t bytes) {
    const size_t whole = (bytes + CANARY - 1) / CANARY * CANARY;
    if (whole > m->size - m->used) {
        printf("FAIL a case is larger than %zu bytes\n", m->size);
        _Exit(EXIT_FAILURE);
    }
    m->used += whole;
    return m->memory + m->used - whole;
}

void gpu_mirror_add(struct gpu_mirror *m, struct guarded *host, size_t alignment) {
    if (!host->pages) return;
    if (m->count == GPU_MIRROR_BUFFERS) abort();
    m->buffers[m->count].own = NULL;
    if (m->exact && alignment > 1 && host->size > 0) {
        need(ejk_device_allocate(0, host->size, &m->buffers[m->count].own));
        copy(m->buffers[m->count].own, true, host->data, false, host->size);
        m->buffers[m->count].host = host;
        m->buffers[m->count].pages =
            (unsigned char *)m->buffers[m->count].own - (host->data - host->pages);
        m->count++;
        return;
    }
    const size_t offset = (size_t)(host->data - host->pages) % alignment;
    unsigned char *pages = take(m, host->mapped + alignment) + (alignment - offset) % alignment;
    copy(pages, true, host->pages, false, host->mapped);
    m->buffers[m->count].host = host;
    m->buffers[m->count++].pages = pages;
}

void *gpu_mirror_of(const struct gpu_mirror *m, const void *address) {
    const unsigned char *at = address;
    if (!address) return NULL;
    for (int i = 0; i < m->count; i++) {
        const struct guarded *host = m->buffers[i].host;
        if (at >= host->pages && at <= host->pages + host->mapped)
            return m->buffers[i].pages + (at - host->pages);
    }
    return m->memory; /* of a tensor without elements */
}

static void *filled(size_t bytes) {
    unsigned char *room = malloc(bytes + 1);
    if (!room) abort();
    memset(room, GUARDED_FILL, bytes);
    return room;
}

void *gpu_mirror_workspace(struct gpu_mirror *m, size_t bytes, bool told) {
    if (bytes == 0) return NULL;
    if (m->exact) {
        need(ejk_device_free(0, m->workspace));
        need(ejk_device_allocate(0, bytes, &m->workspace));
        if (told) return m->workspace;
        unsigned char *room = filled(bytes);
        copy(m->workspace, true, room, false, bytes);
        free(room);
        return m->workspace;
    }
    const size_t whole = (bytes + CANARY - 1) / CANARY * CANARY + 2 * CANARY;
    unsigned char *at = take(m, whole), *room = filled(whole);
    copy(at, true, room, false, whole);
    free(room);
    return at + CANARY;
}

bool gpu_mirror_workspace_intact(struct gpu_mirror *m, const void *workspace, size_t bytes) {
    if (bytes == 0 || m->exact) return true;
    const unsigned char *at = workspace;
    const size_t rest = (bytes + CANARY - 1) / CANARY * CANARY - bytes + CANARY;
    unsigned char *room = filled(CANARY + rest), *expected = filled(CANARY + rest);
    copy(room, false, at - CANARY, true, CANARY);
    copy(room + CANARY, false, at + bytes, true, rest);
    const bool intact = memcmp(room, expected, CANARY + rest) == 0;
    free(room);
    free(expected);
    return intact;
}

static int find(const struct gpu_mirror *m, const struct guarded *host) {
    int i = 0;
    while (i < m->count && m->buffers[i].host != host) i++;
    if (i == m->count) abort();
    return i;
}

void gpu_mirror_fetch(struct gpu_mirror *m, struct guarded *host) {
    if (!host->pages) return;
    const int i = find(m, host);
    if (m->buffers[i].own)
        copy(host->data, false, m->buffers[i].own, true, host->size);
    else
        copy(host->pages, false, m->buffers[i].pages, true, host->mapped);
}

bool gpu_mirror_same(struct gpu_mirror *m, const struct guarded *host) {
    if (!host->pages) return true;
    const int i = find(m, host);
    if (m->buffers[i].own) return true;
    unsigned char *room = filled(host->mapped);
    copy(room, false, m->buffers[i].pages, true, host->mapped);
    const bool same = memcmp(room, host->pages, host->mapped) == 0;
    free(room);
    return same;
}

ejki_flash_problem gpu_mirror_problem(const struct gpu_mirror *m, const ejki_flash_problem *p) {
    ejki_flash_problem q = *p;
    q.query.data = gpu_mirror_of(m, p->query.data);
    q.key.data = gpu_mirror_of(m, p->key.data);
    q.value.data = gpu_mirror_of(m, p->value.data);
    q.out.data = gpu_mirror_of(m, p->out.data);
    q.lse.data = gpu_mirror_of(m, p->lse.data);
    q.row_max.data = gpu_mirror_of(m, p->row_max.data);
    q.row_sum.data = gpu_mirror_of(m, p->row_sum.data);
    q.bias.data = gpu_mirror_of(m, p->bias.data);
    q.mask.data = gpu_mirror_of(m, p->mask.data);
    q.query_segments.data = gpu_mirror_of(m, p->query_segments.data);
    q.key_segments.data = gpu_mirror_of(m, p->key_segments.data);
    q.sinks = gpu_mirror_of(m, p->sinks);
    q.query_sums = gpu_mirror_of(m, p->query_sums);
    q.key_sums = gpu_mirror_of(m, p->key_sums);
    return q;
}

ejki_flash_vjp_problem gpu_mirror_vjp_problem(const struct gpu_mirror *m,
                                              const ejki_flash_vjp_problem *v) {
    ejki_flash_vjp_problem w = *v;
    w.forward = gpu_mirror_problem(m, &v->forward);
    w.out_cotangent.data = gpu_mirror_of(m, v->out_cotangent.data);
    w.lse_cotangent.data = gpu_mirror_of(m, v->lse_cotangent.data);
    w.d_query.data = gpu_mirror_of(m, v->d_query.data);
    w.d_key.data = gpu_mirror_of(m, v->d_key.data);
    w.d_value.data = gpu_mirror_of(m, v->d_value.data);
    w.d_bias.data = gpu_mirror_of(m, v->d_bias.data);
    w.d_sinks = gpu_mirror_of(m, v->d_sinks);
    return w;
}
