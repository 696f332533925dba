"""`python -m scan_snap_ode`."""

from scan_snap_ode.cli import main

if __name__ == "__main__":
    main()
