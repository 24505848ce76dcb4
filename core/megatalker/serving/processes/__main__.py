"""An engine process; see :mod:`megatalker.serving.processes.host`."""

from megatalker.serving.processes.host import main

main()
