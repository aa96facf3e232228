/*
 * Runs a command and writes its peak resident size, in kB, as the last line of stderr.
 *
 * The kernel counts for a child what its parent had in memory when it started it, so this is small:
 * an interpreter in its place would be the larger of the two.
 */
#include <stdio.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	struct rusage usage;
	pid_t child;
	int status;

	if (argc < 2 || (child = fork()) < 0)
		return 125;
	if (child == 0) {
		execv(argv[1], argv + 1);
		_exit(126);
	}
	if (wait4(child, &status, 0, &usage) != child)
		return 125;
	dprintf(2, "%ld\n", usage.ru_maxrss);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 125;
}
