/* bpf-opt for C: generated from crates/capi/src/lib.rs; `BPF_OPT_BLESS=1 cargo test -p bpf-opt-c` writes it anew. */

#ifndef BPF_OPT_H
#define BPF_OPT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

/*
 What to minimize.
 */
typedef enum {
  /*
   Fewest instruction slots.
   */
  BPF_OPT_GOAL_SIZE = 0,
  /*
   Fewest estimated nanoseconds.
   */
  BPF_OPT_GOAL_LATENCY = 1,
  /*
   Fewest instructions for the kernel's verifier to process.
   */
  BPF_OPT_GOAL_VERIFIER = 2,
} BpfOptGoal;

/*
 What came of a call.
 */
typedef enum {
  /*
   Done; of `bpf_opt_verify`: proven equal.
   */
  BPF_OPT_STATUS_YES = 0,
  /*
   Of `bpf_opt_verify`: different. Of `bpf_opt_check`: not safe.
   */
  BPF_OPT_STATUS_NO = 1,
  /*
   Bad input: the message says what is wrong.
   */
  BPF_OPT_STATUS_BAD_INPUT = 2,
  /*
   Neither proven nor refuted.
   */
  BPF_OPT_STATUS_UNKNOWN = 3,
  /*
   A fault of the library.
   */
  BPF_OPT_STATUS_INTERNAL = 70,
} BpfOptStatus;

/*
 Where a filter's program runs.
 */
typedef enum {
  /*
   The driver.
   */
  BPF_OPT_HOOK_XDP = 0,
  /*
   A classifier.
   */
  BPF_OPT_HOOK_TC = 1,
  /*
   A control group's packets.
   */
  BPF_OPT_HOOK_CGROUP_SKB = 2,
  /*
   A socket.
   */
  BPF_OPT_HOOK_SOCKET = 3,
} BpfOptHook;

/*
 How to optimize. Begin with `bpf_opt_defaults()`.
 */
typedef struct {
  /*
   What to minimize.
   */
  BpfOptGoal goal;
  /*
   How much to do, from 1 to 4, as `bpf-opt opt -O`.
   */
  uint8_t level;
  /*
   Time for the whole object.
   */
  double seconds;
  /*
   Seed of everything random.
   */
  uint64_t seed;
  /*
   Worker threads.
   */
  uint32_t jobs;
  /*
   Whether the running kernel's verifier is asked.
   */
  bool kernel;
  /*
   Whether original and result are run in it to compare them.
   */
  bool run_check;
} BpfOptOptions;

/*
 Bytes, or a text that ends with a zero byte (which `len` does not count).
 */
typedef struct {
  /*
   The first byte; null if there is nothing.
   */
  uint8_t *data;
  /*
   How many.
   */
  uintptr_t len;
} BpfOptBuffer;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/*
 The options of `bpf-opt opt -O2`, with one worker thread.
 */
BpfOptOptions bpf_opt_defaults(void);

/*
 Gives a buffer back, which is empty afterwards. A null pointer, or an empty buffer, is left alone.

 # Safety
 `buffer` is null, or points to a buffer that a function of this library has filled, or to an empty one.
 */
void bpf_opt_free(BpfOptBuffer *buffer);

/*
 Optimizes an object of `len` bytes. `result` gets the object; `report`, if it is not null, what became of each function, as
 JSON; `message`, if it is not null, what is wrong with bad input.

 # Safety
 `object` points to `len` bytes. `result` points to a buffer, `report` and `message` are null or do so; what is in them is
 overwritten.
 */
BpfOptStatus bpf_opt_optimize(const uint8_t *object,
                              uintptr_t len,
                              BpfOptOptions options,
                              BpfOptBuffer *result,
                              BpfOptBuffer *report,
                              BpfOptBuffer *message);

/*
 Proves that two objects behave the same, or finds that they do not. `report`, if it is not null, gets the verdicts in words.

 # Safety
 `a` and `b` point to so many bytes. `report` and `message` are null or point to buffers; what is in them is overwritten.
 */
BpfOptStatus bpf_opt_verify(const uint8_t *a,
                            uintptr_t a_len,
                            const uint8_t *b,
                            uintptr_t b_len,
                            BpfOptOptions options,
                            BpfOptBuffer *report,
                            BpfOptBuffer *message);

/*
 Judges the safety of all programs without a kernel. `report`, if it is not null, gets a line for each.

 # Safety
 As of `bpf_opt_optimize`.
 */
BpfOptStatus bpf_opt_check(const uint8_t *object,
                           uintptr_t len,
                           BpfOptBuffer *report,
                           BpfOptBuffer *message);

/*
 Compiles a filter of tcpdump's language to an object that lets pass what matches and drops the rest.

 # Safety
 `text` is a text that ends with a zero byte. `result` points to a buffer, `message` is null or does so; what is in them is
 overwritten.
 */
BpfOptStatus bpf_opt_filter(const char *text,
                            BpfOptHook hook,
                            BpfOptBuffer *result,
                            BpfOptBuffer *message);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* BPF_OPT_H */
