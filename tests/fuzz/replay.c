/* replay.c - runs a fuzz target over files, without libFuzzer.
 *
 *     fuzz_calls tests/fuzz/corpus/calls
 *     fuzz_calls crash-6f1c...
 *
 * Each argument is a file or a folder of files. It fails when there is none. */
#include <dirent.h>
#include <errno.h>
#include <sys/stat.h>

#include "fuzz.h"

static unsigned replayed;

static void replay_file(const char *path)
{
    static uint8_t data[1 << 20];
    FILE *in = fopen(path, "rb");
    size_t size = in ? fread(data, 1, sizeof data, in) : 0;
    if (!in || ferror(in)) {
        fprintf(stderr, "%s: %s\n", path, strerror(errno));
        exit(EXIT_FAILURE);
    }
    fclose(in);
    fprintf(stderr, "%s\n", path);     /* The last one named is the one that failed. */
    uint8_t *exact = malloc(size + 1); /* So that a read behind its end is seen. */
    must(exact != NULL);
    memcpy(exact + 1, data, size);
    LLVMFuzzerTestOneInput(exact + 1, size);
    free(exact);
    replayed++;
}

static void replay_folder(const char *path, DIR *folder)
{
    for (const struct dirent *e; (e = readdir(folder));) {
        char file[4096];
        snprintf(file, sizeof file, "%s/%s", path, e->d_name);
        if (e->d_name[0] != '.')
            replay_file(file);
    }
    closedir(folder);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        DIR *folder = opendir(argv[i]);
        if (folder)
            replay_folder(argv[i], folder);
        else
            replay_file(argv[i]);
    }
    printf("%u inputs\n", replayed);
    return replayed ? EXIT_SUCCESS : EXIT_FAILURE;
}
