/* The interface between a handler and the sandbox of ash-sandbox. See the module `sandbox` there.
 *
 * A handler defines ash_handle, and is built by
 *   clang --target=wasm32 -O2 -nostdlib -I/path/to/evring/crates/ash-guest/include \
 *         -Wl,--no-entry,--export=ash_handle,-zstack-size=16384 \
 *         -Wl,--initial-memory=65536,--max-memory=65536 -o handler.wasm handler.c
 */
#ifndef ASH_H
#define ASH_H

#include <stddef.h>
#include <stdint.h>

/* What becomes of a message. */
enum ash_verdict { ASH_PASS = 0, ASH_HANDLED = 1, ASH_DISCARD = 2, ASH_ABORT = 3 };

/* The results of host calls. */
enum ash_status { ASH_OK = 0, ASH_FAULT = -1, ASH_EXHAUSTED = -2, ASH_INVALID = -3, ASH_BUSY = -4 };

/* Handles a message that arrived on a connection, in a slot of the receive ring. The message is read-only. */
int32_t ash_handle(const uint8_t *message, size_t length, uint64_t connection, uint32_t slot);

#define ASH_CALL(name) __attribute__((import_module("ash"), import_name(#name))) extern

/* Returns nanoseconds since the handler was instantiated. */
ASH_CALL(clock) int64_t ash_clock(void);
/* Sends bytes to the peer if the message is handled; they must not change until ash_handle has returned. */
ASH_CALL(send) int32_t ash_send(const void *bytes, size_t length);
/* Returns the tenant. */
ASH_CALL(id) int64_t ash_id(void);
/* Copies bytes, with one check of each range. */
ASH_CALL(copy) int32_t ash_copy(void *to, const void *from, size_t length);
/* Applies a pipe list that only reads. */
ASH_CALL(read_apply) int32_t ash_read_apply(uint32_t pipes, const void *from, size_t length);
/* Applies a pipe list that writes to another place. */
ASH_CALL(write_apply) int32_t ash_write_apply(uint32_t pipes, const void *from, void *to, size_t length);
/* Sets a persistent register of a pipe list before it is applied. */
ASH_CALL(export) int32_t ash_export(uint32_t pipes, uint32_t reg, uint64_t value);
/* Gives a keystream of a pipe list a key of 32 bytes with a nonce of 12 bytes behind it, before it is applied. */
ASH_CALL(key) int32_t ash_key(uint32_t pipes, uint32_t keystream, const void *key, uint32_t first_block);
/* Returns a persistent register of a pipe list after it was applied; -1 if there is none. */
ASH_CALL(import) int64_t ash_import(uint32_t pipes, uint32_t reg);
/* Posts an event to the application if the message is handled. */
ASH_CALL(post) int32_t ash_post(int64_t kind, int64_t value);
/* Starts an upcall with the message if it is passed on. */
ASH_CALL(upcall) int32_t ash_upcall(void);
/* Adds to one of 16 counters. */
ASH_CALL(count) int32_t ash_count(uint32_t counter, int64_t by);
/* Returns the offset of a reply slot for so many bytes, from which they leave without a copy; or ASH_EXHAUSTED. */
ASH_CALL(reply) int32_t ash_reply(size_t length);
/* Keeps the message where it has landed, if it is handled, until its slot is given back. */
ASH_CALL(keep) int32_t ash_keep(void);
/* Gives back the slot of a message that the handler keeps, if the message in hand is handled. */
ASH_CALL(give_back) int32_t ash_give_back(uint32_t slot);
/* Returns the table that the application shares, read-only, or ASH_FAULT. It may change at any time. */
ASH_CALL(table) int32_t ash_table(void);
/* Locks a section of the table until ash_handle has returned, and returns it; or ASH_BUSY: do not wait, but abort. */
ASH_CALL(lock) int32_t ash_lock(uint32_t section);
/* Writes bytes to whole words of a section that is locked, if the message is handled. They must not change until ash_handle
   has returned. */
ASH_CALL(store) int32_t ash_store(int32_t to, const void *from, size_t length);
/* Ends the handler with a voluntary abort. */
ASH_CALL(abort) _Noreturn void ash_abort(void);

#endif
