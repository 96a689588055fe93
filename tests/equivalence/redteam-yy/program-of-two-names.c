/* A program with two names. libbpf makes a program of each symbol of a function, and applies relocations to one of two that
 * stand in the same place (`find_prog_by_sec_insn` in libbpf.c): in `second` the name of the map is the number 0. The original
 * returns 1 as `first` and 0 as `second`. `bpf-opt opt` takes out the test, because an address of a map is not null, and
 * both return 1; `bpf-opt verify` says that the two objects are equal (red team YY; not repaired). The object model has one
 * function there (`alias` in object/src/functions.rs), which is taken to be relocated in all programs that begin with it.
 * The kernel decides no branch in `second`, whose both ways lead on, so what it leaves of it is no sign either; only the code
 * that libbpf has linked shows it (`Decided::linked`: no `src_reg` in the first instruction).
 *   clang -O2 -g -target bpf -mcpu=v3 -c program-of-two-names.c
 *   bpftool prog loadall program-of-two-names.o /sys/fs/bpf/x
 *   bpftool prog run pinned /sys/fs/bpf/x/second data_in FILE-OF-64-BYTES
 */
#define SEC(n) __attribute__((section(n), used))
struct xdp_md {
	int data;
};
char lic[] SEC("license") = "GPL";
struct {
	int (*type)[2];
	int (*max_entries)[1];
	int *key;
	long *value;
} map SEC(".maps");
SEC("xdp") __attribute__((naked)) int first(struct xdp_md *ctx)
{
	asm volatile("r2 = map ll\n"
		     "r0 = 1\n"
		     "if r2 != 0 goto +1\n"
		     "r0 = 0\n"
		     "exit");
}
extern int second(struct xdp_md *ctx) __attribute__((alias("first")));
