/* SPDX-License-Identifier: Apache-2.0 */
#include "device/cuda_cache_folder.h"

#include "base/folder.h"
#include "device/cuda_cache.h"
#include "device/cuda_driver.h"

#include <dirent.h>
#include <fcntl.h>
#include <openssl/evp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* A kernel compiled for one configuration takes 30 to 100 KB: a few thousand of them. */
#define DEFAULT_LIMIT (INT64_C(256) << 20)

static int64_t limit(void) {
    const char *text = getenv("EJKERNEL_CUDA_CACHE_BYTES");
    char *end;
    const long long bytes = text && *text ? strtoll(text, &end, 10) : 0;
    return bytes > 0 && !*end ? bytes : DEFAULT_LIMIT;
}

/* To be freed; NULL without memory. The caches' own folder may be given as a file of configurations in it. */
static char *folder(void) {
    const char *wish = getenv("EJKERNEL_CUDA_CACHE");
    if (wish && *wish) return ejki_cache_root(wish);
    char *root = ejki_cache_root(NULL);
    const size_t length = root ? strlen(root) : 0;
    if (length >= 3 && strcmp(root + length - 3, ".db") == 0) {
        char *slash = strrchr(root, '/');
        if (slash)
            *slash = '\0';
        else
            memcpy(root, ".", 2);
    }
    char *path = root ? ejki_compose("%s/cuda", root) : NULL;
    free(root);
    return path;
}

static const char suffix[] = ".cubin";

static bool ends_in(const char *name, const char *end) {
    const size_t length = strlen(name), rest = strlen(end);
    return length >= rest && strcmp(name + length - rest, end) == 0;
}

/* The newest version of which there is a file whose name begins so; 0 = none. */
static int newest(const char *path, const char *start) {
    int best = 0, major, minor;
    DIR *list = opendir(path);
    if (!list) return 0;
    for (const struct dirent *entry; (entry = readdir(list));) {
        if (strncmp(entry->d_name, start, strlen(start)) != 0 || !ends_in(entry->d_name, suffix))
            continue;
        if (sscanf(entry->d_name + strlen(start), "-%4d.%4d", &major, &minor) == 2 && major > 0 &&
            minor >= 0 && 1000 * major + 10 * minor > best)
            best = 1000 * major + 10 * minor;
    }
    closedir(list);
    return best;
}

char *ejki_cuda_cache_file(const unsigned char key[32], int version) {
    char hex[33], *where = folder();
    for (int i = 0; i < 16; i++) snprintf(hex + 2 * i, 3, "%02x", key[i]);
    if (where && !version) version = newest(where, hex);
    char *path = where ? ejki_compose("%s/%s-%d.%d%s", where, hex, version / 1000,
                                      version % 1000 / 10, suffix)
                       : NULL;
    free(where);
    return path;
}

/* ---- Size ------------------------------------------------------------------------------------------- */

typedef struct kept_file {
    char name[96];
    int64_t bytes;
    struct timespec used;
} kept_file;

typedef struct listing {
    kept_file *files;
    size_t count, room;
    int64_t bytes;
} listing;

/* The name fits. */
static bool add(listing *all, const char *name, const struct stat *facts) {
    if (all->count == all->room) {
        const size_t room = all->room ? 2 * all->room : 64;
        kept_file *grown = realloc(all->files, room * sizeof *grown);
        if (!grown) return false;
        all->files = grown;
        all->room = room;
    }
    kept_file *file = &all->files[all->count++];
    memcpy(file->name, name, strlen(name) + 1);
    file->bytes = facts->st_size;
    file->used = facts->st_mtim;
    all->bytes += facts->st_size;
    return true;
}

/* Our files; what a process that was killed left half written is removed after an hour. */
static listing list_files(const char *where) {
    listing all = {0};
    DIR *list = opendir(where);
    if (!list) return all;
    for (const struct dirent *entry; (entry = readdir(list));) {
        struct stat facts;
        const bool ours = ends_in(entry->d_name, suffix), half = ends_in(entry->d_name, ".tmp");
        if ((!ours && !half) || strlen(entry->d_name) >= sizeof all.files->name ||
            fstatat(dirfd(list), entry->d_name, &facts, AT_SYMLINK_NOFOLLOW) != 0 ||
            !S_ISREG(facts.st_mode))
            continue;
        if (half && time(NULL) - facts.st_mtim.tv_sec > 3600)
            unlinkat(dirfd(list), entry->d_name, 0);
        if (ours && !add(&all, entry->d_name, &facts)) break;
    }
    closedir(list);
    return all;
}

static int by_age(const void *first, const void *second) {
    const struct timespec *a = &((const kept_file *)first)->used;
    const struct timespec *b = &((const kept_file *)second)->used;
    if (a->tv_sec != b->tv_sec) return a->tv_sec < b->tv_sec ? -1 : 1;
    return (a->tv_nsec > b->tv_nsec) - (a->tv_nsec < b->tv_nsec);
}

void ejki_cuda_cache_trim(const char *kept) {
    char *where = strndup(kept, (size_t)(strrchr(kept, '/') - kept));
    if (!where) return;
    const int64_t most = limit();
    listing all = list_files(where);
    if (all.bytes > most) qsort(all.files, all.count, sizeof *all.files, by_age);
    /* Some more than needed, so that not every new kernel has to look at all files' ages. */
    for (size_t i = 0; i < all.count && all.bytes > most - most / 8; i++) {
        if (all.bytes <= most && i == 0) break;
        char *path = ejki_compose("%s/%s", where, all.files[i].name);
        if (path && strcmp(path, kept) != 0 && unlink(path) == 0) all.bytes -= all.files[i].bytes;
        free(path);
    }
    free(all.files);
    free(where);
}

void ejki_cuda_cache_look(ejk_cuda_info *out) {
    char *where = folder();
    out->cache_limit = limit();
    if (!where) return;
    const listing all = list_files(where);
    snprintf(out->cache_folder, sizeof out->cache_folder, "%s", where);
    out->cached_kernels = (int64_t)all.count;
    out->cached_bytes = all.bytes;
    free(all.files);
    free(where);
}

/* ---- Which NVRTC ------------------------------------------------------------------------------------ */

/*
 * Loading NVRTC takes a tenth of a second, which a process that finds all its kernels here should not pay to
 * learn its version. So the version is noted beside them, for the circumstances under which that file was found,
 * and holds as long as the file is the same.
 */
static char *note_file(void) {
    static const char *const names[] = {"EJKERNEL_NVRTC_LIBRARY", "LD_LIBRARY_PATH", "VIRTUAL_ENV",
                                        "CONDA_PREFIX"};
    char driver[16] = "";
    unsigned char sum[32];
    EVP_MD_CTX *hash = EVP_MD_CTX_new();
    snprintf(driver, sizeof driver, "%d", ejki_cuda_driver_version() / 1000);
    bool made = hash && EVP_DigestInit_ex(hash, EVP_sha256(), NULL) == 1 &&
                EVP_DigestUpdate(hash, driver, sizeof driver - 1) == 1;
    for (size_t i = 0; i < sizeof names / sizeof *names && made; i++) {
        const char *value = getenv(names[i]);
        if (!value) value = "";
        made = EVP_DigestUpdate(hash, value, strlen(value) + 1) == 1;
    }
    made = made && EVP_DigestFinal_ex(hash, sum, NULL) == 1;
    EVP_MD_CTX_free(hash);
    char *where = made ? folder() : NULL;
    char *path = where ? ejki_compose("%s/nvrtc-%02x%02x%02x%02x%02x%02x%02x%02x", where, sum[0],
                                      sum[1], sum[2], sum[3], sum[4], sum[5], sum[6], sum[7])
                       : NULL;
    free(where);
    return path;
}

int ejki_cuda_cache_noted(void) {
    char *path = note_file(), library[512] = "";
    FILE *file = path ? fopen(path, "re") : NULL;
    int version = 0;
    long long bytes = 0, seconds = 0;
    struct stat facts;
    if (file) {
        if (fscanf(file, "%d %lld %lld %511[^\n]", &version, &bytes, &seconds, library) != 4 ||
            stat(library, &facts) != 0 || facts.st_size != bytes ||
            facts.st_mtim.tv_sec != seconds || version < 0)
            version = 0;
        fclose(file);
    }
    free(path);
    return version;
}

void ejki_cuda_cache_note(int version, const char *library) {
    struct stat facts;
    if (*library != '/' || stat(library, &facts) != 0 || ejki_cuda_cache_noted() == version) return;
    char *path = note_file();
    char *beside = path ? ejki_compose("%s.%ld.tmp", path, (long)getpid()) : NULL;
    FILE *file = beside && ejki_make_folders(path, 0700) ? fopen(beside, "we") : NULL;
    if (file) {
        fprintf(file, "%d %lld %lld %s\n", version, (long long)facts.st_size,
                (long long)facts.st_mtim.tv_sec, library);
        if (fclose(file) != 0 || rename(beside, path) != 0) unlink(beside);
    }
    free(beside);
    free(path);
}
