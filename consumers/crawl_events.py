"""The worker process: `python -m consumers.crawl_events` does the same as `opic worker`."""

from opic.cli.__main__ import naming_the_extra


def main() -> int:
    """Run until told to stop; return the exit status."""
    from opic.service.worker_process import main as run

    return run()


if __name__ == "__main__":
    naming_the_extra(main)
