/*
 * The frozen program: the interpreter, linked in, and what it needs before there is an importer.
 *
 * It stands in for PyInstaller's bootloader, which unpacks an archive and loads the interpreter as a
 * shared library: that has a third more to do until the first line of Python, and takes more memory.
 * build.spec writes boot.h: `boot`, utf8.py as `encodings` and start.py as they are marshalled.
 *
 * program NAME ARGUMENT...: NAME is what the bundle was called by (launcher.c). The bundle's directory
 * is this program's own, by its path.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <signal.h>
#include <string.h>

#include "boot.h"

PyObject *PyInit__syscalls(void);

static void end_unless_done(PyStatus status)
{
	if (PyStatus_Exception(status))
		Py_ExitStatusException(status);
}

/* Where the interpreter would search is nowhere: start.py has an importer. */
static void set_paths(PyConfig *config, const char *program, const char *home)
{
	wchar_t **homes[] = { &config->home, &config->prefix, &config->exec_prefix, &config->base_prefix,
		&config->base_exec_prefix, &config->stdlib_dir };
	wchar_t **programs[] = { &config->program_name, &config->executable, &config->base_executable };
	size_t i;

	for (i = 0; i < sizeof(homes) / sizeof(*homes); i++)
		end_unless_done(PyConfig_SetBytesString(config, homes[i], home));
	for (i = 0; i < sizeof(programs) / sizeof(*programs); i++)
		end_unless_done(PyConfig_SetBytesString(config, programs[i], program));
	config->module_search_paths_set = 1;
}

int main(int argc, char **argv)
{
	char *home = argc > 1 ? strdup(argv[0]) : NULL;
	char *slash = home ? strrchr(home, '/') : NULL;
	PyPreConfig before;
	PyConfig config;
	sigset_t interrupt;

	if (!slash)
		return 1;
	*slash = 0;
	PyPreConfig_InitIsolatedConfig(&before);
	before.utf8_mode = 1;
	end_unless_done(Py_PreInitialize(&before));
	PyImport_FrozenModules = boot;
	if (PyImport_AppendInittab("_syscalls", PyInit__syscalls))
		return 1;
	PyConfig_InitIsolatedConfig(&config);
	config.site_import = 0;
	config.write_bytecode = 0;
	config.optimization_level = 2;
	config.parse_argv = 0;
	/* A SIGINT waits until there is something to take it (start.py). */
	config.install_signal_handlers = 0;
	sigemptyset(&interrupt);
	sigaddset(&interrupt, SIGINT);
	sigprocmask(SIG_BLOCK, &interrupt, NULL);
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	set_paths(&config, argv[0], home);
	end_unless_done(PyConfig_SetBytesArgv(&config, argc - 1, argv + 1));
	/* In two steps: what is made in the second is to stay, and nothing in it need be looked at for garbage. */
	config._init_main = 0;
	end_unless_done(Py_InitializeFromConfig(&config));
	PyGC_Disable();
	end_unless_done(_Py_InitializeMain());
	if (PyImport_ImportFrozenModule("__main__") < 1)
		PyErr_Print();
	return 1;
}
