/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of idle buffers without locks: an array of atomic pointers. Taking one is an exchange with NULL,
 * so a buffer's size is read only by whoever owns it. A list used by one thread at a time holds one
 * buffer, as large as the largest request so far.
 */
#include "ops/core/core.h"

#include <stdlib.h>

/* In front of a workspace; as long as the alignment, so that the workspace is aligned too. */
typedef struct header {
    _Alignas(EJKI_ALIGNMENT) size_t bytes;
} header;

static header *header_of(void *workspace) {
    return (header *)workspace - 1;
}

static void release(void *workspace) {
    if (workspace) free(header_of(workspace));
}

static ejk_status allocate(size_t bytes, void **out) {
    if (bytes > PTRDIFF_MAX - 2 * EJKI_ALIGNMENT)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "a workspace of %zu bytes cannot be addressed",
                         bytes);
    size_t rounded = (bytes + EJKI_ALIGNMENT - 1) / EJKI_ALIGNMENT * EJKI_ALIGNMENT;
    header *head = aligned_alloc(EJKI_ALIGNMENT, sizeof *head + rounded);
    if (!head)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a workspace of %zu bytes", bytes);
    head->bytes = rounded;
    *out = head + 1;
    return EJK_OK;
}

ejk_status ejki_workspaces_take(ejki_workspaces *list, size_t bytes, void **out) {
    void *small = NULL;
    for (int i = 0; i < EJKI_MAX_WORKSPACES; i++) {
        if (!atomic_load_explicit(&list->idle[i], memory_order_relaxed)) continue;
        void *found = atomic_exchange_explicit(&list->idle[i], NULL, memory_order_acquire);
        if (!found) continue;
        if (header_of(found)->bytes >= bytes) {
            if (small) ejki_workspaces_give(list, small);
            *out = found;
            return EJK_OK;
        }
        if (small) ejki_workspaces_give(list, small);
        small = found;
    }
    release(small); /* the new one takes its place: the list grows in bytes, not in number */
    return allocate(bytes, out);
}

void ejki_workspaces_give(ejki_workspaces *list, void *workspace) {
    for (int i = 0; i < EJKI_MAX_WORKSPACES; i++) {
        void *empty = NULL;
        if (!atomic_load_explicit(&list->idle[i], memory_order_relaxed) &&
            atomic_compare_exchange_strong_explicit(&list->idle[i], &empty, workspace,
                                                    memory_order_release, memory_order_relaxed))
            return;
    }
    release(workspace);
}

void ejki_workspaces_close(ejki_workspaces *list) {
    for (int i = 0; i < EJKI_MAX_WORKSPACES; i++)
        release(atomic_exchange_explicit(&list->idle[i], NULL, memory_order_acquire));
}
