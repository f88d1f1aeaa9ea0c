/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether a file is sound, found out by reading alone: nothing is made, renamed, brought up to date or written,
 * so that a folder that cannot be written to and a full disk are no obstacles.
 */
#include "ops/config/persistent.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

enum { REASON = 256 };

struct verification {
    ejk_persistent_cache *cache;
    ejk_persistent_report *report;
};

static bool verify_row(void *verification_, const ejki_row *row) {
    struct verification *verification = verification_;
    verification->report->rows++;
    if (!ejki_persistent_accepts(verification->cache, row))
        ++*(row->fault ? &verification->report->rejected : &verification->report->stale);
    return true;
}

int ejki_persistent_verify(ejk_persistent_cache *cache, ejki_store *store,
                           ejk_persistent_report *report) {
    struct verification verification = {cache, report};
    *report = (ejk_persistent_report){0};
    int rc = ejki_store_each(store, false, verify_row, &verification);
    if (rc == SQLITE_OK) rc = ejki_store_examine(store);
    report->sound = rc == SQLITE_OK && report->rejected == 0;
    return rc;
}

/* ---- A file by itself ---------------------------------------------------------------------------------- */

static ejk_status unreadable(const ejk_persistent_cache *file, const char *why) {
    return ejki_fail(EJK_STATUS_IO, "%s cannot be read: %s", file->path, why);
}

/* Rows of an older version are not looked at one by one: they have no checksums. */
static int read_rows(ejk_persistent_cache *file, int64_t version, bool is_new,
                     ejk_persistent_report *report) {
    ejki_store *store = &file->store;
    *report = (ejk_persistent_report){.sound = true};
    if (is_new) return SQLITE_OK;
    if (version < EJKI_SCHEMA_VERSION) {
        int rc = ejki_store_ask(store, "SELECT count(*) FROM configs", &report->rows);
        return rc == SQLITE_OK ? ejki_store_examine(store) : rc;
    }
    int rc = ejki_store_check(store);
    return rc == SQLITE_OK ? ejki_persistent_verify(file, store, report) : rc;
}

static ejki_verdict read_file(ejk_persistent_cache *file, bool with_log,
                              ejk_persistent_report *report, char reason[REASON]) {
    ejki_store *store = &file->store;
    struct stat facts;
    int64_t version;
    bool is_new, ours;
    int rc = ejki_store_open_to_read(store, file->path, with_log, file->busy_ms);
    if (rc == SQLITE_OK && stat(file->path, &facts) != 0) rc = SQLITE_CANTOPEN;
    if (rc == SQLITE_OK) {
        const ejki_verdict verdict = ejki_persistent_identify(store, facts.st_size, &version,
                                                              &is_new, &ours, reason, REASON);
        if (verdict != EJKI_SOUND) return verdict;
        rc = read_rows(file, version, is_new, report);
    }
    if (rc == SQLITE_OK) return EJKI_SOUND;
    ejki_persistent_describe(store, rc, reason, REASON);
    return ejki_verdict_of(rc) == EJKI_SOUND ? EJKI_REFUSED : ejki_verdict_of(rc);
}

/* With its log where there is one and it can be read; that may take a folder that can be written to. */
static ejk_status verify_file(ejk_persistent_cache *file, ejk_persistent_report *report) {
    char reason[REASON] = "";
    ejki_verdict verdict = EJKI_REFUSED;
    if (ejki_store_has_log(file->path)) {
        verdict = read_file(file, true, report, reason);
        if (verdict == EJKI_REFUSED) ejki_store_close_alone(&file->store);
    }
    if (verdict == EJKI_REFUSED) verdict = read_file(file, false, report, reason);
    ejki_store_close_alone(&file->store);
    if (verdict == EJKI_NO_MEMORY)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for reading a cache");
    if (verdict == EJKI_REFUSED) return unreadable(file, reason);
    if (verdict == EJKI_SOUND) return EJK_OK;
    report->sound = false;
    ejki_persistent_note(file, "cache_damaged", "{s:s, s:s}", "path", file->shown, "reason",
                         reason);
    return EJK_OK;
}

/* What the system says about the file; pipes and the like would make a reader wait. */
static ejk_status look_at_file(ejk_persistent_cache *file) {
    struct stat facts;
    if (stat(file->path, &facts) != 0) return unreadable(file, strerror(errno));
    if (!S_ISREG(facts.st_mode)) return unreadable(file, "it is no regular file");
    return access(file->path, R_OK) == 0 ? EJK_OK : unreadable(file, strerror(errno));
}

/*
 * Nobody changes the file while the lock is held. Where there is none, or it cannot be had, nobody who is known
 * of writes there.
 */
static ejk_status verify_locked(ejk_persistent_cache *file, ejk_persistent_report *report) {
    EJKI_TRY(look_at_file(file));
    char *name = ejki_compose("%s-lock", file->path);
    const bool there = name && access(name, F_OK) == 0;
    free(name);
    if (there && ejki_lock_take(file->path, file->busy_ms, &file->lock_file) == EBUSY) {
        close(file->lock_file);
        return ejki_fail(EJK_STATUS_IO, "%s is in use by others for more than %d ms", file->path,
                         (int)file->busy_ms);
    }
    const ejk_status status = verify_file(file, report);
    if (file->lock_file >= 0) close(file->lock_file); /* which lets go of it */
    return status;
}

/* SQLite puts its other files beside the one that a link means. */
static ejk_status locate(const char *path, char **out) {
    EJKI_TRY(ejk_persistent_cache_locate(path, out));
    char *real = realpath(*out, NULL);
    if (!real) return EJK_OK;
    free(*out);
    *out = real;
    return EJK_OK;
}

ejk_status ejk_persistent_file_verify(const ejk_persistent_options *options,
                                      ejk_persistent_report *out) {
    static const ejk_persistent_options defaults = {0};
    if (!out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL; expected one");
    if (!options) options = &defaults;
    EJKI_TRY(ejki_persistent_check_options(options));
    ejk_persistent_cache file = {.busy_ms = options->busy_ms > 0 ? options->busy_ms : EJKI_BUSY_MS,
                                 .on_event = options->on_event,
                                 .on_event_user = options->on_event_user,
                                 .lock_file = -1,
                                 .fixed = ejki_fixed_since_list};
    file.events_end = &file.events;
    EJKI_TRY(locate(options->path, &file.path));
    file.shown = ejki_persistent_shown(file.path);
    ejk_persistent_report report = {0};
    ejk_status status = EJK_STATUS_OUT_OF_MEMORY;
    if (!file.shown)
        (void)ejki_fail(status, "no memory for a path");
    else
        status = verify_locked(&file, &report);
    ejki_persistent_emit(&file, file.events);
    free(file.shown);
    free(file.path);
    if (status == EJK_OK) *out = report;
    return status;
}
