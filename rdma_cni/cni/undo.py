"""What must be undone when a later step fails, as `contextlib.ExitStack` without its imports."""

from rdma_cni.cni import log

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


class Undo:
    """A stack of steps that undo what was done; run in reverse unless the whole succeeds.

    What was only lent for the time of the work, locks and sockets, is given back either way.
    """

    def __init__(self) -> None:
        self._steps: list[tuple[str, Callable[[], object]]] = []
        self._lent: list[Callable[[], object]] = []

    def push(self, what: str, step: "Callable[[], object]") -> None:
        """`what` completes "could not ...", for the log."""
        self._steps.append((what, step))

    def lend(self, give_back: "Callable[[], object]") -> None:
        """Call `give_back` at the end, after whatever is undone."""
        self._lent.append(give_back)

    def forget(self) -> None:
        """Everything succeeded: nothing is to be undone any more."""
        self._steps.clear()
        self._give_back()

    def roll_back(self) -> None:
        """Run the steps in reverse. One that fails is logged, and the others run all the same."""
        while self._steps:
            what, step = self._steps.pop()
            try:
                step()
            except Exception as error:
                log.error(f"rolling back: could not {what}: {error}")
        self._give_back()

    def _give_back(self) -> None:
        while self._lent:
            self._lent.pop()()
