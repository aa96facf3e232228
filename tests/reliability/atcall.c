/*
 * atcall N ACTION REPORT PROGRAM [ARGUMENT...]
 *
 * Runs PROGRAM and acts when it is about to make the N-th of the system calls that change something:
 *
 *   list      nothing: the program runs to its end
 *   kill      SIGKILL; the call is not made
 *   term      SIGTERM
 *   stop      it stands still, and atcall with it, which stops itself (SIGSTOP) until it gets a SIGCONT
 *   fail=E    the call is not made and fails with errno E
 *   refuse=E  a netlink request is not made, and the kernel's answer to it says E
 *
 * REPORT gets a line with the program's process ID, then one for each such call, the N-th last. Ends with the
 * program's exit status, or 128 and its signal; with 125 for a failure of its own, and then the program ends, too.
 * Children of the program run on undisturbed and uncounted.
 *
 * Counted are netlink requests that do not only ask, packets, writes (not those to stderr), what makes, renames
 * or removes a file, and what enters a namespace or mounts something.
 *
 * A filter of seccomp stops the program at those calls alone: it is as quick as it is without.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/netlink.h>
#include <linux/rtnetlink.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef __x86_64__
#error "the registers' names are x86-64's"
#endif

static const struct { int number; const char *name; } calls[] = {
#define CALL(name) { SYS_##name, #name }
	CALL(sendto), CALL(sendmsg), CALL(write), CALL(writev), CALL(pwrite64), CALL(pwritev), CALL(openat), CALL(open),
	CALL(creat), CALL(ftruncate), CALL(truncate), CALL(fallocate), CALL(fsync), CALL(fdatasync), CALL(rename),
	CALL(renameat), CALL(renameat2), CALL(unlink), CALL(unlinkat), CALL(rmdir), CALL(link), CALL(linkat),
	CALL(symlink), CALL(symlinkat), CALL(mkdir), CALL(mkdirat), CALL(mknod), CALL(mknodat), CALL(chmod),
	CALL(fchmod), CALL(fchmodat), CALL(chown), CALL(fchown), CALL(fchownat), CALL(setns), CALL(unshare), CALL(mount),
	CALL(umount2), CALL(fsopen), CALL(fsconfig), CALL(fsmount), CALL(recvfrom),
};
enum { COUNT = sizeof calls / sizeof *calls };

static void die(const char *what)
{
	perror(what);
	exit(125);
}

static void filter(void)
{
	struct sock_filter code[2 * COUNT + 5], *next = code;

	*next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, arch));
	*next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AUDIT_ARCH_X86_64, 1, 0);
	*next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	*next++ = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
	for (int i = 0; i < COUNT; i++) {
		*next++ = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].number, 0, 1);
		*next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE);
	}
	*next++ = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
	struct sock_fprog program = { next - code, code };
	if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program))
		die("seccomp");
}

static size_t peek(pid_t pid, unsigned long long from, void *to, size_t size)
{
	struct iovec here = { to, size }, there = { (void *)from, size };
	ssize_t got = process_vm_readv(pid, &here, 1, &there, 1, 0);

	return got < 0 ? 0 : got;
}

static void poke(pid_t pid, unsigned long long to, const void *from, size_t size)
{
	struct iovec here = { (void *)from, size }, there = { (void *)to, size };

	if (process_vm_writev(pid, &here, 1, &there, 1, 0) != (ssize_t)size)
		die("process_vm_writev");
}

/* 0 where the process was killed meanwhile: of that waitpid tells. */
static int trace(int request, pid_t pid, void *address, void *data)
{
	if (!ptrace(request, pid, address, data))
		return 1;
	if (errno != ESRCH)
		die("ptrace");
	return 0;
}

/* The header of what sendto or sendmsg sends, which may be no netlink request at all. */
static unsigned long long request(pid_t pid, const struct user_regs_struct *regs, struct nlmsghdr *head)
{
	unsigned long long where = regs->rsi;

	if (regs->orig_rax == SYS_sendmsg) {
		struct msghdr message;
		struct iovec part;
		if (peek(pid, regs->rsi, &message, sizeof message) < sizeof message)
			return 0;
		if (peek(pid, (unsigned long long)message.msg_iov, &part, sizeof part) < sizeof part)
			return 0;
		where = (unsigned long long)part.iov_base;
	}
	return peek(pid, where, head, sizeof *head) == sizeof *head ? where : 0;
}

/* RTM_GET..., and what rdma_netlink.h calls RDMA_NLDEV_CMD_GET, _PORT_GET and _SYS_GET. */
static int asks_only(unsigned type)
{
	return (type >= RTM_BASE && type <= RTM_MAX && (type & 3) == 2) || type == (5 << 10) + 1 ||
	       type == (5 << 10) + 5 || type == (5 << 10) + 6;
}

static void name_of_fd(pid_t pid, int fd, char *to, size_t size)
{
	char path[64];

	snprintf(path, sizeof path, "/proc/%d/fd/%d", pid, fd);
	ssize_t length = readlink(path, to, size - 1);
	to[length < 0 ? 0 : length] = 0;
}

/* What the report says of a call; 0 for one that changes nothing. */
static int describe(pid_t pid, const struct user_regs_struct *regs, char *to, size_t size)
{
	const char *name = "?";
	char what[4096] = "";
	struct nlmsghdr head = { 0 };
	int number = regs->orig_rax;

	for (int i = 0; i < COUNT; i++)
		if (calls[i].number == number)
			name = calls[i].name;
	switch (number) {
	case SYS_recvfrom:
		return 0;
	case SYS_sendto:
	case SYS_sendmsg:
		if (request(pid, regs, &head) && asks_only(head.nlmsg_type))
			return 0;
		snprintf(what, sizeof what, "type %u", head.nlmsg_type);
		break;
	case SYS_openat:
		if (!(regs->rdx & (O_CREAT | O_TRUNC)))
			return 0;
		peek(pid, regs->rsi, what, sizeof what - 1);
		break;
	case SYS_open:
		if (!(regs->rsi & (O_CREAT | O_TRUNC)))
			return 0;
		/* fallthrough */
	case SYS_creat: case SYS_rename: case SYS_unlink: case SYS_rmdir: case SYS_link: case SYS_symlink: case SYS_mkdir:
	case SYS_truncate: case SYS_chmod: case SYS_chown: case SYS_mknod:
		peek(pid, regs->rdi, what, sizeof what - 1);
		break;
	case SYS_write: case SYS_writev: case SYS_pwrite64: case SYS_pwritev: case SYS_ftruncate: case SYS_fallocate:
	case SYS_fsync: case SYS_fdatasync: case SYS_fchmod: case SYS_fchown:
		if (regs->rdi == 2)
			return 0;
		name_of_fd(pid, regs->rdi, what, sizeof what);
		break;
	}
	for (char *c = what; *c; c++)
		if (*c == '\n')
			*c = ' ';
	snprintf(to, size, "%s %s", name, what);
	return 1;
}

int main(int argc, char **argv)
{
	if (argc < 5) {
		fprintf(stderr, "usage: atcall N list|kill|term|stop|fail=ERRNO|refuse=ERRNO REPORT PROGRAM [ARGUMENT...]\n");
		return 125;
	}
	long wanted = atol(argv[1]), count = 0;
	const char *action = argv[2], *equals = strchr(action, '=');
	int error = equals ? atoi(equals + 1) : 0, status, result = 125;
	FILE *report = fopen(argv[3], "we");
	unsigned refused = 0, reading = 0;

	if (!report)
		die(argv[3]);
	pid_t program = fork();
	if (program == 0) {
		if (ptrace(PTRACE_TRACEME, 0, 0, 0))
			die("ptrace");
		raise(SIGSTOP);
		filter();
		execvp(argv[4], argv + 4);
		die(argv[4]);
	}
	if (program < 0 || waitpid(program, &status, 0) != program || !WIFSTOPPED(status))
		die("fork");
	/* Whatever becomes of this process, nothing stands still for ever. */
	trace(PTRACE_SETOPTIONS, program, 0, (void *)(PTRACE_O_EXITKILL | PTRACE_O_TRACESECCOMP |
	      PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC));
	fprintf(report, "%d\n", program);
	trace(PTRACE_CONT, program, 0, 0);
	for (;;) {
		struct user_regs_struct regs;
		char line[4200];
		int signal = 0, how = PTRACE_CONT;
		pid_t pid = waitpid(-1, &status, __WALL);
		if (pid < 0)
			break;
		if (WIFEXITED(status) || WIFSIGNALED(status)) {
			if (pid == program)
				result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
			continue;
		}
		int event = status >> 16, stopped = WSTOPSIG(status);
		if (event == 0 && stopped != (SIGTRAP | 0x80)) {
			/* A new child begins with a SIGSTOP that is not its own. */
			signal = pid != program && stopped == SIGSTOP ? 0 : stopped;
		} else if (event == PTRACE_EVENT_SECCOMP && pid == program) {
			if (!trace(PTRACE_GETREGS, pid, 0, &regs))
				continue;
			if (refused && regs.orig_rax == SYS_recvfrom) {
				reading = 1;
				how = PTRACE_SYSCALL;
			} else if (describe(pid, &regs, line, sizeof line)) {
				fprintf(report, "%s\n", line);
				if (++count == wanted) {
					if (!strcmp(action, "kill")) {
						kill(pid, SIGKILL);
					} else if (!strcmp(action, "term")) {
						kill(pid, SIGTERM);
					} else if (!strcmp(action, "stop")) {
						fflush(report);
						raise(SIGSTOP);
					} else if (!strncmp(action, "fail", 4)) {
						regs.orig_rax = -1;
						regs.rax = -error;
						trace(PTRACE_SETREGS, pid, 0, &regs);
					} else if (regs.orig_rax == SYS_sendto || regs.orig_rax == SYS_sendmsg) {
						/* Refused. Another call at this number is left alone. */
						struct nlmsghdr head;
						unsigned long long where = request(pid, &regs, &head);
						/* What the kernel skips, and answers like any other. */
						head.nlmsg_type = NLMSG_NOOP;
						refused = head.nlmsg_seq;
						poke(pid, where, &head, sizeof head);
					}
				}
			}
		} else if (event == 0 && reading && pid == program) {
			/* At the end of a recvfrom. */
			struct { struct nlmsghdr head; int error; } answer;
			if (!trace(PTRACE_GETREGS, pid, 0, &regs))
				continue;
			reading = 0;
			if ((long long)regs.rax >= (long long)sizeof answer &&
			    peek(pid, regs.rsi, &answer, sizeof answer) == sizeof answer &&
			    answer.head.nlmsg_type == NLMSG_ERROR && answer.head.nlmsg_seq == refused) {
				answer.error = -error;
				poke(pid, regs.rsi, &answer, sizeof answer);
				refused = 0;
			}
		}
		trace(how, pid, 0, (void *)(long)signal);
	}
	if (fclose(report))
		die(argv[3]);
	return result;
}
