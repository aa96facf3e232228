/*
 * The executables of the bundle: a static program that starts the frozen one with the bundle's own
 * libc and loader, so that nothing is asked of the node but /proc.
 *
 * It lies in the bundle's directory under each name that the bundle has; the frozen program is told
 * the name that was used as its first argument.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char path[3][PATH_MAX + 64];

/* "<home>/_internal<rest>" */
static char *inside(int number, const char *home, const char *rest)
{
	snprintf(path[number], sizeof(path[number]), "%s/_internal%s", home, rest);
	return path[number];
}

static const char *base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

int main(int argc, char **argv)
{
	const char *name = argc > 0 ? base_name(argv[0]) : "rdma";
	char **arguments = calloc(argc + 8, sizeof(*arguments));
	char home[PATH_MAX];
	ssize_t length = readlink("/proc/self/exe", home, sizeof(home) - 1);
	char **next = arguments, *program;
	struct stat in;
	int i;

	if (!arguments || length <= 0) {
		fprintf(stderr, "%s: /proc/self/exe cannot be read: %s; is /proc mounted?\n", name, strerror(errno));
		return 1;
	}
	/* The interpreter ends without a word when its stdin is a directory. */
	if (fstat(0, &in) == 0 && S_ISDIR(in.st_mode)) {
		int unreadable = open("/dev/null", O_WRONLY);

		dup2(unreadable, 0);
		close(unreadable);
	}
	home[length] = 0;
	*strrchr(home, '/') = 0;
	program = inside(0, home, "/program");
	*next++ = inside(1, home, "/" LOADER);
	*next++ = "--inhibit-cache";
	*next++ = "--library-path";
	*next++ = inside(2, home, "");
	*next++ = program;
	*next++ = (char *)name;
	for (i = 1; i < argc; i++)
		*next++ = argv[i];
	execv(arguments[0], arguments);
	fprintf(stderr, "%s: %s: %s; the directory _internal belongs beside this program\n", name, arguments[0],
		strerror(errno));
	return 1;
}
