/*
 * The system calls of rdma_cni/syscalls.py, as a module of the frozen program: to load what calls functions of
 * libc from Python takes longer than an ADD spends in these.
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <sys/syscall.h>
#include <unistd.h>

#include <linux/mount.h>

static PyObject *enter(PyObject *self, PyObject *args)
{
	int fd;

	if (!PyArg_ParseTuple(args, "i", &fd))
		return NULL;
	/* By its number: <sched.h> has the function for _GNU_SOURCE alone. */
	if (syscall(SYS_setns, fd, 0x40000000 /* CLONE_NEWNET */))
		return PyErr_SetFromErrno(PyExc_OSError);
	Py_RETURN_NONE;
}

static PyObject *open_sysfs(PyObject *self, PyObject *none)
{
	int context = syscall(SYS_fsopen, "sysfs", FSOPEN_CLOEXEC);
	int fd = -1;

	if (context < 0)
		return PyErr_SetFromErrno(PyExc_OSError);
	if (!syscall(SYS_fsconfig, context, FSCONFIG_CMD_CREATE, NULL, NULL, 0))
		fd = syscall(SYS_fsmount, context, FSMOUNT_CLOEXEC, 1 /* MOUNT_ATTR_RDONLY */);
	if (fd < 0)
		PyErr_SetFromErrno(PyExc_OSError);
	close(context);
	return fd < 0 ? NULL : PyLong_FromLong(fd);
}

static PyMethodDef methods[] = {
	{ "setns", enter, METH_VARARGS },
	{ "sysfs", open_sysfs, METH_NOARGS },
	{ NULL },
};

static struct PyModuleDef module = { PyModuleDef_HEAD_INIT, .m_name = "_syscalls", .m_size = -1, .m_methods = methods };

PyObject *PyInit__syscalls(void)
{
	return PyModule_Create(&module);
}
