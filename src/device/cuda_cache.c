/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One file per compiled kernel, `<key>-<version of NVRTC>.cubin`: a header with the key and a checksum, then the
 * machine code and the compiler's log. A file appears under its name only when complete, so that processes need
 * no lock: who comes second writes the same again.
 */
#include "device/cuda_cache.h"

#include "base/folder.h"
#include "device/cuda_cache_folder.h"
#include "device/cuda_event.h"
#include "device/cuda_nvrtc.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <openssl/evp.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { KEY_BYTES = sizeof(ejki_cuda_key), MOST_BYTES = 256 << 20 };

/* In the byte order of the machine: a cache is not carried to others. */
typedef struct header {
    char magic[8];
    uint64_t cubin_bytes, log_bytes;
    unsigned char key[KEY_BYTES];
    unsigned char checksum[32]; /* of all above and all that follows */
} header;

static const char magic[8] = "ejkcu01";

/* ---- Keys ------------------------------------------------------------------------------------------- */

/* With its length in front, so that neighbours cannot lend each other characters. */
static bool add_text(EVP_MD_CTX *hash, const char *text) {
    const uint64_t length = strlen(text);
    return EVP_DigestUpdate(hash, &length, sizeof length) == 1 &&
           EVP_DigestUpdate(hash, text, length) == 1;
}

static bool add_all(EVP_MD_CTX *hash, const char *architecture, const ejki_cuda_texts_used *used,
                    const ejki_cuda_constant *constants, int32_t count) {
    bool added = add_text(hash, magic) && add_text(hash, architecture);
    for (int32_t i = 0; i < used->count && added; i++)
        added = add_text(hash, used->texts[i]->name) && add_text(hash, used->texts[i]->text);
    for (int32_t i = 0; i < count && added; i++)
        added = add_text(hash, constants[i].name) &&
                EVP_DigestUpdate(hash, &constants[i].value, sizeof constants[i].value) == 1;
    return added;
}

ejk_status ejki_cuda_key_make(const char *architecture, const ejki_cuda_source *source,
                              const ejki_cuda_constant *constants, int32_t count,
                              ejki_cuda_key *out) {
    ejki_cuda_texts_used used;
    EJKI_TRY(ejki_cuda_collect(source, &used));
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    const bool made = hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 &&
                      add_all(hash, architecture, &used, constants, count) &&
                      EVP_DigestFinal_ex(hash, out->bytes, NULL) == 1;
    EVP_MD_CTX_free(hash);
    return made ? EJK_OK : ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a kernel's key");
}

static bool checksum(const header *head, const void *cubin, const void *log,
                     unsigned char out[32]) {
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    const bool made = hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 &&
                      EVP_DigestUpdate(hash, head, offsetof(header, checksum)) == 1 &&
                      EVP_DigestUpdate(hash, cubin, head->cubin_bytes) == 1 &&
                      EVP_DigestUpdate(hash, log, head->log_bytes) == 1 &&
                      EVP_DigestFinal_ex(hash, out, NULL) == 1;
    EVP_MD_CTX_free(hash);
    return made;
}

/* ---- Reading ---------------------------------------------------------------------------------------- */

static bool read_fully(int file, void *room, size_t size) {
    for (char *at = room; size;) {
        const ssize_t got = read(file, at, size);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        at += got;
        size -= (size_t)got;
    }
    return true;
}

/* NULL if it is sound; else what is wrong with it. */
static const char *read_image(int file, const ejki_cuda_key *key, ejki_cuda_image *out) {
    header head;
    struct stat facts;
    unsigned char sum[32];
    if (fstat(file, &facts) != 0 || !S_ISREG(facts.st_mode)) return "no regular file";
    if (!read_fully(file, &head, sizeof head)) return "cut short";
    if (memcmp(head.magic, magic, sizeof magic) != 0) return "another format";
    if (memcmp(head.key, key->bytes, KEY_BYTES) != 0) return "another kernel's";
    if (head.cubin_bytes < 1 || head.cubin_bytes > MOST_BYTES || head.log_bytes > MOST_BYTES ||
        sizeof head + head.cubin_bytes + head.log_bytes != (uint64_t)facts.st_size)
        return "of the wrong size";
    ejki_cuda_image image = {.bytes = malloc(head.cubin_bytes),
                             .size = head.cubin_bytes,
                             .log = calloc(1, head.log_bytes + 1)};
    const char *fault = NULL;
    if (!image.bytes || !image.log)
        fault = "too large for the memory there is";
    else if (!read_fully(file, image.bytes, image.size) ||
             !read_fully(file, image.log, head.log_bytes))
        fault = "cut short";
    else if (!checksum(&head, image.bytes, image.log, sum) ||
             memcmp(sum, head.checksum, sizeof sum) != 0)
        fault = "damaged";
    if (fault)
        ejki_cuda_image_close(&image);
    else
        *out = image;
    return fault;
}

bool ejki_cuda_cache_read(const ejki_cuda_key *key, int version, const char *name,
                          ejki_cuda_image *out) {
    char *path = ejki_cuda_cache_file(key->bytes, version);
    const int file = path ? open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK) : -1;
    const char *fault = file < 0 ? "" : read_image(file, key, out);
    if (file >= 0) {
        if (!fault) futimens(file, NULL); /* what is used is not old */
        close(file);
    }
    if (fault && *fault)
        ejki_cuda_emit("cuda_cache_rejected", "{s:s, s:s, s:s}", "kernel", name, "file", path,
                       "reason", fault);
    free(path);
    return !fault;
}

/* ---- Writing ---------------------------------------------------------------------------------------- */

static bool write_fully(int file, const void *bytes, size_t size) {
    for (const char *at = bytes; size;) {
        const ssize_t put = write(file, at, size);
        if (put < 0 && errno == EINTR) continue;
        if (put <= 0) return false;
        at += put;
        size -= (size_t)put;
    }
    return true;
}

static bool write_parts(int file, const header *head, const ejki_cuda_image *image) {
    return write_fully(file, head, sizeof *head) &&
           write_fully(file, image->bytes, head->cubin_bytes) &&
           write_fully(file, image->log, head->log_bytes);
}

/* Beside the file and renamed to it; false with errno. */
static bool write_file(char *path, const header *head, const ejki_cuda_image *image) {
    static _Atomic(unsigned) count;
    char *beside = ejki_compose("%s.%ld-%u.tmp", path, (long)getpid(),
                                atomic_fetch_add_explicit(&count, 1, memory_order_relaxed));
    if (!beside || !ejki_make_folders(path, 0700)) {
        free(beside);
        return false;
    }
    const int file = open(beside, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    bool done = file >= 0 && write_parts(file, head, image);
    int error = errno;
    if (file >= 0 && close(file) != 0 && done) {
        done = false;
        error = errno;
    }
    if (done && rename(beside, path) != 0) {
        done = false;
        error = errno;
    }
    if (!done && file >= 0) unlink(beside);
    free(beside);
    errno = error;
    return done;
}

void ejki_cuda_cache_write(const ejki_cuda_key *key, int version, const char *name,
                           const ejki_cuda_image *image) {
    header head = {.cubin_bytes = image->size, .log_bytes = strlen(image->log)};
    memcpy(head.magic, magic, sizeof magic);
    memcpy(head.key, key->bytes, KEY_BYTES);
    char *path = ejki_cuda_cache_file(key->bytes, version);
    if (!path || !checksum(&head, image->bytes, image->log, head.checksum)) {
        free(path);
        return;
    }
    if (write_file(path, &head, image))
        ejki_cuda_cache_trim(path);
    else
        ejki_cuda_emit("cuda_cache_degraded", "{s:s, s:s, s:s}", "kernel", name, "file", path,
                       "reason", strerror(errno));
    free(path);
}
