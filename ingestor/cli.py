"""Commands, signals and exit codes."""


def main() -> None:
    raise SystemExit(2)
