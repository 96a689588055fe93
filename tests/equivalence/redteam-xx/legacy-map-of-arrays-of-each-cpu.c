/* A map of maps whose definition is by numbers, as iproute2 reads it: inner_id names the template of its inner maps, an array of each
 * CPU. `bpf-opt opt` takes out the way by which `other` comes to the lookup at `site`, and the kernel then makes code for the template's
 * four elements in place of the helper's call: element 5 of a longer inner array is found by the original and not by the result (red team XX;
 * returned are 2 and 1). Of the same maps in `.maps` the program stays as it is.
 *   clang -O2 -target bpf -mcpu=v3 -c legacy-map-of-arrays-of-each-cpu.c
 */
#define SEC(n) __attribute__((section(n),used))
typedef unsigned int u32;
struct xdp_md { u32 data, data_end; };
char lic[] SEC("license") = "GPL";
struct bpf_elf_map { u32 type,size_key,size_value,max_elem,flags,id,pinning,inner_id,inner_idx; };
struct bpf_elf_map SEC("maps") inner = { .type=6, .size_key=4, .size_value=8, .max_elem=4, .id=7 };
struct bpf_elf_map SEC("maps") outer = { .type=12, .size_key=4, .size_value=4, .max_elem=1, .inner_id=7 };
struct bpf_elf_map SEC("maps") other = { .type=1, .size_key=4, .size_value=8, .max_elem=4 };
SEC("xdp") __attribute__((naked)) int prog(struct xdp_md *ctx) { 
	asm volatile(
	"r6 = 0\n"
	"r9 = other ll\n"
	"r7 = *(u32 *)(r1 + 0)\n"
	"r3 = *(u32 *)(r1 + 4)\n"
	"r4 = r7\n"
	"r4 += 14\n"
	"if r4 > r3 goto out\n"
	"r6 = *(u8 *)(r7 + 0)\n"
	"r8 = 0\n"
	"*(u32 *)(r10 - 4) = r8\n"
	"r2 = r10\n"
	"r2 += -4\n"
	"r1 = outer ll\n"
	"call 1\n"
	"if r0 == 0 goto out\n"
	"r1 = r0\n"
	"r8 = 5\n"
	"*(u32 *)(r10 - 4) = r8\n"
	"r2 = r10\n"
	"r2 += -4\n"
	"r6 /= 32\n"
	"if r6 > 9 goto via\n"
	"site:\n"
	"call 1\n"
	"if r0 == 0 goto missing\n"
	"r0 = 2\n"
	"exit\n"
	"missing:\n"
	"r0 = 1\n"
	"exit\n"
	"via:\n"
	"r1 = r9\n"
	"goto site\n"
	"out:\n"
	"r0 = 3\n"
	"exit");
}
