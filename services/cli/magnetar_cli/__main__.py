"""``python -m magnetar_cli`` is ``magnetar``."""

from magnetar_cli.main import main

raise SystemExit(main())
