/* SPDX-License-Identifier: Apache-2.0 */
#include "support/guarded.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static size_t page_size(void) {
    return (size_t)sysconf(_SC_PAGESIZE);
}

static void need(bool done, const char *what) {
    if (done) return;
    perror(what);
    exit(EXIT_FAILURE);
}

void guarded_create(struct guarded *buffer, size_t size, enum guarded_side side, size_t slack) {
    const size_t page = page_size();
    const size_t mapped = (size + slack + page) / page * page;
    unsigned char *all =
        mmap(NULL, mapped + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(all != MAP_FAILED, "mmap");
    need(mprotect(all + page, mapped, PROT_READ | PROT_WRITE) == 0, "mprotect");
    *buffer = (struct guarded){.size = size, .pages = all + page, .mapped = mapped};
    buffer->data = buffer->pages + (side == GUARDED_START ? slack : mapped - size - slack);
    guarded_fill(buffer);
}

void guarded_destroy(struct guarded *buffer) {
    if (buffer->pages) munmap(buffer->pages - page_size(), buffer->mapped + 2 * page_size());
    *buffer = (struct guarded){.data = NULL};
}

void guarded_protect(struct guarded *buffer) {
    if (buffer->pages) need(mprotect(buffer->pages, buffer->mapped, PROT_READ) == 0, "mprotect");
}

void guarded_unprotect(struct guarded *buffer) {
    if (buffer->pages)
        need(mprotect(buffer->pages, buffer->mapped, PROT_READ | PROT_WRITE) == 0, "mprotect");
}

void guarded_fill(struct guarded *buffer) {
    if (buffer->pages) memset(buffer->pages, GUARDED_FILL, buffer->mapped);
}

/* Each byte is as the one before it. */
bool guarded_is_fill(const unsigned char *bytes, size_t size) {
    return size == 0 || (*bytes == GUARDED_FILL && memcmp(bytes, bytes + 1, size - 1) == 0);
}

static bool filled(const unsigned char *from, const unsigned char *to) {
    return guarded_is_fill(from, (size_t)(to - from));
}

bool guarded_intact(const struct guarded *buffer) {
    return filled(buffer->pages, buffer->data) &&
           filled(buffer->data + buffer->size, buffer->pages + buffer->mapped);
}

bool guarded_blank(const struct guarded *buffer) {
    return filled(buffer->pages, buffer->pages + buffer->mapped);
}
