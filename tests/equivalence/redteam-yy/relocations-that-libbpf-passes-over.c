/* Relocations with a number to add (SHT_RELA), as compilers before LLVM 6 wrote them, are applied by old loaders, and passed over by
 * libbpf, which then gives the kernel the number 0 for each name of a map. Both take this program: relocated it returns 1, by
 * bpftool 0. `bpf-opt opt` takes out the test of the second name, and by bpftool the result returns 1; `verify` says equal.
 * Kernel and run check are asked about the relocated form alone (kernel/src/legacy/compilers.rs), while L4 of docs/trust.md
 * says that the loader does as libbpf does (red team YY; not repaired; the same root as program-of-two-names.c: what is
 * loaded is not the code that the object model has, where a relocation is not applied).
 *   clang -O2 -g -target bpf -mcpu=v3 -c relocations-that-libbpf-passes-over.c
 *   then in the object: .relxdp gets sh_type 4 and sh_entsize 24, and each of its two records 8 bytes of 0 behind it
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
SEC("xdp") int first(struct xdp_md *ctx)
{
	int r;
	asm volatile("call 5\n"
		     "r3 = map ll\n"
		     "if r3 != r0 goto +2\n"
		     "%0 = 5\n"
		     "goto +5\n"
		     "r2 = map ll\n"
		     "%0 = 1\n"
		     "if r2 != 0 goto +1\n"
		     "%0 = 0"
		     : "=r"(r)::"r0", "r1", "r2", "r3", "r4", "r5");
	return r;
}
