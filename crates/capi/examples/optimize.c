/* Optimizes a file and proves the result equal: cc optimize.c -I ../include -L DIR -lbpf_opt_c -o optimize; ./optimize IN.o OUT.o */
#include <stdio.h>
#include <stdlib.h>

#include "bpf_opt.h"

static unsigned char *contents(const char *path, size_t *len)
{
	FILE *file = fopen(path, "rb");
	unsigned char *bytes = NULL;

	*len = 0;
	if (!file)
		return NULL;
	if (!fseek(file, 0, SEEK_END)) {
		long size = ftell(file);

		rewind(file);
		bytes = size > 0 ? malloc((size_t)size) : NULL;
		if (bytes)
			*len = fread(bytes, 1, (size_t)size, file);
	}
	fclose(file);
	return bytes;
}

int main(int argc, char **argv)
{
	BpfOptOptions options = bpf_opt_defaults();
	BpfOptBuffer result, message, report;
	unsigned char *object;
	BpfOptStatus status;
	size_t len;
	FILE *out;

	if (argc != 3)
		return 2;
	object = contents(argv[1], &len);
	options.level = 1;
	options.run_check = false;
	status = bpf_opt_optimize(object, len, options, &result, NULL, &message);
	if (status != BPF_OPT_STATUS_YES) {
		fprintf(stderr, "%s: %s\n", argv[1], (char *)message.data);
		bpf_opt_free(&message);
		free(object);
		return (int)status;
	}
	bpf_opt_free(&message);
	out = fopen(argv[2], "wb");
	if (!out || fwrite(result.data, 1, result.len, out) != result.len)
		return 2;
	fclose(out);
	status = bpf_opt_verify(object, len, result.data, result.len, options, &report, NULL);
	printf("%s\nproven equal: %s\n", (char *)report.data, status == BPF_OPT_STATUS_YES ? "yes" : "no");
	bpf_opt_free(&report);
	bpf_opt_free(&result);
	free(object);
	return (int)status;
}
